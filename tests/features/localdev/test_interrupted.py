"""Ctrl-C during a platform start: started parts end without a traceback; a second Ctrl-C does not disturb that."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev import platform
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.localdev.platform import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.usefixtures("own_signals")
def test_an_interrupted_start_ends_what_was_started_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = list[LocalPlatform]()

    def start(started: LocalPlatform, speed: float) -> Iterator[str]:
        yield f"starting {started.folder.name} with {speed:g}"
        signal.raise_signal(signal.SIGINT)

    def stop(started: LocalPlatform) -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append(started)

    monkeypatch.setattr(platform, "start_servers", start)
    monkeypatch.setattr(LocalPlatform, "stop", stop)
    monkeypatch.setattr(sys, "argv", ["platform", "up", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        platform.main()
    assert (left.value.code, len(ended)) == (INTERRUPTED, 1)
    assert "ending the started processes" in capsys.readouterr().out
