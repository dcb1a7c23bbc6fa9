"""Event-time windows, one accumulator per session: a timer sees the messages before it, however the watermark moves."""

from __future__ import annotations

from dataclasses import replace

from lockstep.testing import Judgement, SentMessage, run
from tests.support.minute_stream import Value, Window, WrongDeadline, minutes

IN_ORDER = minutes(reorder=True)
ANY_ORDER = minutes(reorder=False)


def of(session: str, second: int, value: int) -> SentMessage[Value]:
    return SentMessage(value=Value(second, value), key=session)


BEFORE = (of("a", 1, 1), of("a", 55, 5), of("a", 61, 7), of("a", 58, 100))


def test_a_timer_sees_no_message_of_behind_it_though_the_watermark_jumps() -> None:
    """The minute closes at 70 s; the message of 61 s is released at 71 s, and the watermark jumps to 72 s."""
    jumps = run(IN_ORDER, *BEFORE, of("a", 72, 0)).or_raise()
    steps = run(IN_ORDER, *BEFORE, of("b", 70, 0), of("a", 72, 0)).or_raise()
    assert jumps.rows == steps.rows == [Window("minute", 60, 106)]


def test_a_message_at_the_end_of_a_minute_belongs_to_the_next_one() -> None:
    ran = run(IN_ORDER, of("a", 1, 1), of("a", 60, 7), of("a", 70, 1), of("a", 150, 0)).or_raise()
    assert ran.rows == [Window("minute", 60, 1), Window("minute", 120, 8)]


def test_a_late_message_of_an_unknown_session_is_late() -> None:
    """Its session may have ended long ago, and its minute would be emitted a second time."""
    for stream in (ANY_ORDER, IN_ORDER):
        ran = run(stream, of("a", 1, 1), of("b", 1_000, 1), of("c", 5, 9), of("b", 1_015, 1)).or_raise()
        assert [each.judgement for each in ran.verdicts if each.cause == "late"] == [Judgement.LATE]
        assert [row.end for row in ran.rows] == [60]
        assert set(ran.states) == {"a", "b"}


def test_a_session_that_a_late_message_changes_has_its_timer_at_once() -> None:
    """The next message emits the correction of the first minute, before the later minutes of other sessions."""
    sent = (of("a", 1, 1), of("b", 100, 1), of("a", 50, 7), of("b", 101, 1), of("b", 300, 1))
    ran = run(ANY_ORDER, *sent).or_raise()
    assert ran.rows == [Window("minute", 60, 1), Window("minute", 60, 7), Window("minute", 120, 2)]


def test_a_deadline_that_is_no_number_is_named() -> None:
    ran = run(replace(ANY_ORDER, transform=WrongDeadline()), of("a", 1, 1))
    assert "deadline gave 60000000.0: microseconds since 1970 (UTC) as an int, or None" in str(ran.verdicts)
