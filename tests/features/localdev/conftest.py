"""Commands of the local platform that run in the process of a test."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Restore the signal handlers that a start replaces; receive Ctrl-C, which a shell's background jobs ignore."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
