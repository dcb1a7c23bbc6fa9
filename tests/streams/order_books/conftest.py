"""The recordings, loaded once for all tests of this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.recordings import Sent, read_recorded_days, to_sent

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDINGS = Path(__file__).parents[2] / "recordings" / "binance_l2"


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of the extracts."""
    return RECORDINGS


@pytest.fixture(scope="session")
def both_days() -> Callable[[str], Sent]:
    """A function that loads a book as a correct producer sends it, over midnight; each book once."""

    @cache
    def load(book: str) -> Sent:
        return to_sent(read_recorded_days(RECORDINGS, book))

    return load
