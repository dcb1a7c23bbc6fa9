"""One offset suspends a partition: one scan of its states counts the losses, however many messages are bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as some

from lockstep.state.store import PartitionState
from lockstep.testing import SentMessage, run
from tests.support.window_folds import Value, strict_windows

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import pytest

SESSIONS = "abcdefgh"
STEPS = some.lists(some.one_of(some.sampled_from(SESSIONS), some.none()), max_size=60)
"""A message of a session, or None for an undecodable message."""


def count_plainly(steps: list[str | None]) -> tuple[int, int]:
    """Count lost sessions and messages: each bad message ends all sessions started since the previous bad message."""
    sessions = messages = 0
    waiting: list[str] = []
    for session in steps:
        if session is not None:
            waiting.append(session)
            continue
        sessions += len(set(waiting))
        messages += len(waiting)
        waiting.clear()
    return sessions, messages


@given(steps=STEPS)
def test_the_sessions_are_counted_by_one_scan(steps: list[str | None]) -> None:
    log = [SentMessage(value=b"{" if session is None else Value(5, 1), key=session or "x") for session in steps]
    ran = run(strict_windows("windows"), *log).or_raise()
    counted = sum(loss.sessions for loss in ran.losses), sum(loss.messages or 0 for loss in ran.losses)
    assert counted == count_plainly(steps)


def test_a_batch_scans_the_states_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    reduce: Callable[..., Any] = PartitionState.reduce_sessions

    def count(state: PartitionState[object], compute: Callable[..., Any]) -> object:
        scans.append(1)
        return reduce(state, compute)

    monkeypatch.setattr(PartitionState, "reduce_sessions", count)
    steps = [*SESSIONS, None, "a", None, None, "b", "c", None]
    log = [SentMessage(value=b"{" if session is None else Value(5, 1), key=session or "x") for session in steps]
    (loss,) = run(strict_windows("windows"), *log).or_raise().losses
    assert (loss.sessions, loss.messages, len(scans)) == (11, 11, 1)
