"""A game day leaves nothing of its platform, or the logs that explain a failure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import LockstepError
from lockstep.features.rehearsal import game_day
from lockstep.features.rehearsal.fault_plan import GameDayResult, StreamProof
from lockstep.features.rehearsal.game_day import FOLDER, PLATFORM, run_game_day

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lockstep.features.localdev.local_platform import LocalPlatform


def never_starts() -> GameDayResult:
    raise LockstepError("the code server ended", next_step="read its log")


def has_a_bug() -> GameDayResult:
    raise ZeroDivisionError


def is_interrupted() -> GameDayResult:
    raise KeyboardInterrupt


def ends(status: str) -> GameDayResult:
    proof = StreamProof("order_books", status, 1, 1)
    return GameDayResult(seed=1, minutes=1, faults=[], proofs=[proof], committed={})


@pytest.mark.parametrize(
    ("play", "stays"),
    [
        (never_starts, True),
        (has_a_bug, True),
        (is_interrupted, False),
        (lambda: ends("violated"), True),
        (lambda: ends("proven"), False),
    ],
    ids=["never starts", "a bug", "interrupted", "violated", "proven"],
)
def test_the_logs_stay_after_a_failure_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Callable[[], GameDayResult], *, stays: bool
) -> None:
    log = tmp_path / FOLDER / PLATFORM / "logs" / "code.log"

    def start(platform: LocalPlatform, speed: float) -> Iterator[str]:
        del speed
        assert not platform.folder.exists()
        log.parent.mkdir(parents=True)
        log.write_text("why")
        yield "starting"

    class Played:
        def __init__(self, *_: object) -> None:
            """Do nothing."""

        def play(self) -> GameDayResult:
            """Return the result."""
            return play()

    monkeypatch.setattr(game_day, "start_live", start)
    monkeypatch.setattr(game_day, "_make_injector", lambda *_: None)
    monkeypatch.setattr(game_day, "GameDay", Played)
    for _ in range(2):
        with suppress(LockstepError, ZeroDivisionError, KeyboardInterrupt):
            run_game_day(tmp_path, 1.0, 1)
        assert (log.exists(), log.parents[1].exists()) == (stays, stays)
