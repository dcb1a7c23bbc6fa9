"""Every accepted message is in a row, in the state of an active session, or in a counted loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from typing_extensions import override

from lockstep import (
    FuzzyWindow,
    Kind,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    SessionStart,
    Strict,
    Suspend,
)
from lockstep.testing import RENUMBER, Judgement, SentMessage, run
from tests.support.examples import THOROUGH, scale_examples
from tests.support.tiers import keep_usual
from tests.support.window_folds import LATENESS, REFUSED, Tumbling, Value, a_stream

if TYPE_CHECKING:
    from lockstep.folds.windows import WindowState
    from lockstep.integrity.base import IntegrityClass
    from lockstep.testing import RunResult
    from lockstep.testing.script import Event
    from tests.support.window_folds import Values

FIRST = SessionStart.FIRST_MESSAGE
LAST = 100_000
CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=10),
    "once, suspending": Once(keep_ids=10, on_violation=Suspend(), session_start=FIRST),
    "ordered": Ordered(session_start=FIRST),
    "window": FuzzyWindow(lateness=LATENESS, session_start=FIRST),
    "window, accepting": FuzzyWindow(lateness=LATENESS, session_start=FIRST, on_violation=Suspend(accept_loss=True)),
    "reorder": FuzzyWindow(lateness=LATENESS, session_start=FIRST, reorder=True),
    "strict": Strict(evidence=LogOnly(), on_violation=Suspend(), session_start=FIRST),
    "strict, accepting": Strict(evidence=LogOnly(), on_violation=Suspend(accept_loss=True), session_start=FIRST),
}
STEPS = some.lists(
    some.tuples(
        some.sampled_from("ab"),
        some.integers(0, 9),
        some.sampled_from(["update"] * 6 + ["refused", "garbage", "end", "snapshot", "re-created"]),
    ),
    max_size=30,
)


class Refusing(Tumbling):
    """Refuses some values."""

    @override
    def add(self, value: list[int], message: Value) -> list[int]:
        if message.v == REFUSED:
            raise ValueError("refused")
        return super().add(value, message)


def log_of(name: str, steps: list[tuple[str, int, str]]) -> list[SentMessage[Value] | Event]:
    """Return the messages and events of the steps; at the end each session restarts, and all windows close."""
    log: list[SentMessage[Value] | Event] = []
    second = 0
    for session, step, what in steps:
        second += step
        if what == "re-created":
            log += [RENUMBER] if "once" not in name else []  # a violation under Once
            continue
        if what in {"end", "snapshot"} and name == "reorder":
            continue  # they would be held back, too
        kind = {"end": Kind.END, "snapshot": Kind.SNAPSHOT}.get(what, Kind.UPDATE)
        value = Value(second, REFUSED if what == "refused" else 1, kind)
        log.append(SentMessage(value=b"{" if what == "garbage" else value, key=session))
    return [*log, *(SentMessage(value=Value(second, 1), key=name) for name in ("a", "b", "end")), closing("end")]


def closing(session: str) -> SentMessage[Value]:
    """Return a message that closes the windows of all active sessions."""
    return SentMessage(value=Value(LAST, 1), key=session)


def count_accepted(ran: RunResult[WindowState[list[int]], Values]) -> int:
    """Count the messages that were added to windows or are held back."""
    updates = [each for each in ran.folded if each.envelope is not None and each.envelope.kind is Kind.UPDATE]
    freed = sum(each.found == "a buffered message" for each in ran.quarantine)
    return sum(each.verdict.judgement in {Judgement.ACCEPT, Judgement.BUFFER} for each in updates) - freed


def count_lost(ran: RunResult[WindowState[list[int]], Values]) -> int:
    return sum(loss.messages or 0 for loss in ran.losses)


@pytest.mark.parametrize("name", keep_usual(("none", "once, suspending", "window, accepting", "reorder"), CLASSES))
@settings(max_examples=scale_examples(THOROUGH, usual=12))
@given(steps=STEPS, split=some.sampled_from([1, 3, 7]))
def test_no_message_that_was_accepted_disappears(name: str, steps: list[tuple[str, int, str]], split: int) -> None:
    stream = a_stream(Refusing(), CLASSES[name])
    log = log_of(name, steps)
    ran = run(stream, *log).or_raise()
    in_rows = sum(row.messages for row in ran.rows)
    waits = 1  # the closing message, in a window or held back
    assert count_accepted(ran) == in_rows + count_lost(ran) + waits
    accepts = CLASSES[name].accepts_loss
    assert {loss.is_accepted for loss in ran.losses} <= {accepts}
    assert run(stream, *log, split=split) == ran
