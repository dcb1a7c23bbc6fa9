"""A message that the decoder or envelope refuses costs no more than a gap if the class tolerates a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from typing_extensions import override

from lockstep import (
    Envelope,
    FuzzyWindow,
    Halt,
    Kind,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    SessionStart,
    Strict,
    Suspend,
)
from lockstep.testing import SentMessage, run
from tests.support.examples import THOROUGH, scale_examples
from tests.support.tiers import keep_usual
from tests.support.window_folds import LATENESS, ListFold, Silence, Sliding, Tumbling, Value, a_stream, disordered

if TYPE_CHECKING:
    from lockstep.folds.windows import Windows
    from lockstep.integrity.base import IntegrityClass

FIRST = SessionStart.FIRST_MESSAGE
TOLERANT: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "none, first": NoIntegrity(session_start=FIRST),
    "once": Once(keep_ids=10),
    "once, suspending": Once(keep_ids=10, on_violation=Suspend(), session_start=FIRST),
    "ordered": Ordered(session_start=FIRST),
    "ordered, halting": Ordered(session_start=FIRST, on_violation=Halt()),
    "window": FuzzyWindow(lateness=LATENESS, session_start=FIRST),
    "window, accepting": FuzzyWindow(lateness=LATENESS, session_start=FIRST, on_violation=Suspend(accept_loss=True)),
    "reorder": FuzzyWindow(lateness=LATENESS, session_start=FIRST, reorder=True),
}
UNPLACED = -1


class Placing(ListFold):
    """Its envelope refuses one value."""

    windows: ClassVar[Windows] = Tumbling.windows

    @override
    def envelope(self, message: Value, record: Record) -> Envelope:
        if message.v == UNPLACED:
            raise ValueError("no session")
        return super().envelope(message, record)


GARBAGE: tuple[bytes | Value | None, ...] = (b'{"broken', b"", b"null", b"\xff", b"[]", None, Value(5, UNPLACED))
STEPS = some.lists(
    some.tuples(some.sampled_from("ab"), some.integers(0, 25), some.integers(0, 10)), min_size=1, max_size=30
)
PLACES = some.lists(some.tuples(some.integers(0, 30), some.sampled_from(GARBAGE)), min_size=1, max_size=4)


class AnySliding(Placing):
    """Overlapping windows."""

    windows = Sliding.windows


class AnySilence(Placing):
    """Windows that end with silence."""

    windows = Silence.windows


def log_with(
    steps: list[tuple[str, int, int]], places: list[tuple[int, bytes | Value | None]]
) -> tuple[list[SentMessage[Value]], list[SentMessage[Value]], list[int]]:
    """Return the messages with garbage, the same with skipped messages in its place, and its offsets."""
    sent = [SentMessage(value=Value(t, v), key=session) for session, t, v in disordered(steps)]
    broken = list(sent)
    clean = list(sent)
    for place, value in places:
        at = min(place, len(broken))
        broken.insert(at, SentMessage(value=value, key="x"))
        clean.insert(at, SentMessage(value=Value(0, 0, Kind.SKIP), key="x"))
    end = SentMessage(value=Value(100_000, 0), key="end")
    offsets = [at for at, message in enumerate(clean) if isinstance(message.value, Value) and message.key == "x"]
    return [*broken, end], [*clean, end], offsets


@pytest.mark.parametrize("fold", [Placing(), AnySliding(), AnySilence()], ids=lambda fold: type(fold).__name__)
@pytest.mark.parametrize("name", keep_usual(("none", "ordered", "window, accepting", "reorder"), TOLERANT))
@settings(max_examples=scale_examples(THOROUGH, usual=12))
@given(steps=STEPS, places=PLACES, split=some.sampled_from([None, 3]))
def test_garbage_is_set_aside_alone(
    name: str,
    fold: ListFold,
    steps: list[tuple[str, int, int]],
    places: list[tuple[int, bytes | Value | None]],
    split: int | None,
) -> None:
    broken, clean, offsets = log_with(steps, places)
    stream = a_stream(fold, TOLERANT[name])
    found = run(stream, *broken, split=split).or_raise()
    expected = run(stream, *clean).or_raise()
    assert found.proven == expected.proven
    assert found.states == expected.states
    assert found.late == expected.late
    assert [each.offset for each in found.quarantine] == offsets


def test_a_strict_class_suspends_the_partition() -> None:
    """The garbage may have been an update of any session."""
    strict = Strict(evidence=LogOnly(), on_violation=Suspend(), session_start=FIRST)
    sent = [SentMessage(value=Value(5, 1), key="a"), SentMessage(value=b"{"), SentMessage(value=Value(6, 2), key="a")]
    (window,) = run(a_stream(Tumbling(), strict), *sent).or_raise().states["a"].open
    assert window.value == [2]
