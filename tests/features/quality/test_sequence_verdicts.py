"""The rule `sequence` checks the promise of a stream's class: a generated matrix, folded by the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import (
    Checksum,
    Envelope,
    EventTime,
    FuzzyWindow,
    InitialState,
    Kind,
    Link,
    Linked,
    LogOnly,
    NoIntegrity,
    Once,
    Ordered,
    Record,
    Sequence,
    SessionStart,
    Stream,
    Strict,
    Suspend,
    Topics,
    Transform,
)
from lockstep.features.quality.check import find_traits
from lockstep.features.quality.partitions import RANGE, RANGE_VALUES, ROW, MeasuredPartition, summarize_partitions
from lockstep.features.quality.rules import RuleOutcome, judge_partitions
from lockstep.integrity.strict import Evidence, Repeats
from lockstep.testing import SentMessage, run
from tests.features.quality.test_partitions import SCHEMA
from tests.support.examples import scale_examples

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from lockstep.testing import RowWithOrigin

SECOND_US = 1_000_000
LATENESS = timedelta(seconds=10)


class Message(msgspec.Struct):
    """A message with a number and its place in a chain of links.

    Attributes:
        kind: Its kind.
        number: The producer's number.
        second: Event time.
        link: Its id in the chain, the previous id plus one; None without links.
        restarts: Whether the numbers restart with it.
    """

    kind: Kind
    number: int | None = None
    second: int = 0
    link: int | None = None
    restarts: bool = False


class Applied(msgspec.Struct):
    count: int


class Row(msgspec.Struct, frozen=True):
    count: int


class Counting(Transform[Message, Applied, Row]):
    """Each update has a row, and snapshots have none."""

    def envelope(self, message: Message, record: Record) -> Envelope:
        link = None if message.link is None else Link(last=message.link, previous=message.link - 1)
        return Envelope(
            record.key_text,
            message.kind,
            sequence=message.number,
            link=link,
            event_time_us=message.second * SECOND_US,
            restarts_sequence=message.restarts,
        )

    def on_snapshot(
        self, message: Message, record: Record, previous: Applied | None
    ) -> Applied | InitialState[Applied, Row]:
        return Applied(0)

    def on_update(self, state: Applied, message: Message, record: Record) -> Iterable[Row]:
        state.count += 1
        yield Row(state.count)


class WithSnapshots(Counting):
    """Snapshots and the first message of a session have rows."""

    def on_snapshot(self, message: Message, record: Record, previous: Applied | None) -> InitialState[Applied, Row]:
        return InitialState(Applied(0), [Row(0), Row(-1)])


class WithEverything(WithSnapshots):
    """The end of a session and a timer also have rows."""

    def deadline(self, state: Applied) -> int | None:
        return (state.count + 1) * 7 * SECOND_US

    def on_timer(self, state: Applied, deadline_us: int) -> Iterable[Row]:
        state.count += 1
        yield Row(state.count)

    def on_end(self, state: Applied) -> Iterable[Row]:
        yield Row(state.count)


class WithLate(WithEverything):
    """A late message also has a row."""

    def on_late(self, state: Applied, message: Message, record: Record) -> Iterable[Row]:
        yield Row(-2)


TRANSFORMS = {"plain": Counting(), "snapshots": WithSnapshots(), "everything": WithEverything()}
IDLE = {"plain": None, "snapshots": timedelta(seconds=20), "everything": timedelta(seconds=20)}


def list_classes() -> Iterable[IntegrityClass]:
    """Return each integrity class with each evidence, session start, and option that affects numbers."""
    evidences: tuple[Evidence, ...] = (Sequence(), Sequence(wraps_at=256), Linked(), Checksum(), LogOnly())
    for start in SessionStart:
        for evidence, repeats, waits, policy in itertools.product(evidences, Repeats, (False, True), (None, Suspend())):
            if isinstance(evidence, Checksum) and (waits or repeats is Repeats.DROP):
                continue
            if waits and start is SessionStart.FIRST_MESSAGE:
                continue
            strict = Strict(evidence=evidence, repeats=repeats, buffer_until_snapshot=waits, session_start=start)
            yield strict if policy is None else replace(strict, on_violation=policy)
        yield Once(keep_ids=100, session_start=start)
        for reorder in (False, True):
            yield FuzzyWindow(lateness=LATENESS, reorder=reorder, session_start=start)
        for wraps_at in (None, 256):
            yield Ordered(wraps_at=wraps_at, session_start=start)
            yield NoIntegrity(wraps_at=wraps_at, session_start=start)


@dataclass(frozen=True)
class Cell:
    """An integrity class and a transform."""

    integrity: IntegrityClass
    transform: str

    @property
    def stream(self) -> Stream[Message, Applied, Row]:
        late = self.transform == "everything" and self.integrity.keeps_late
        return Stream(
            name="numbers",
            topics=Topics(pattern="numbers"),
            transform=WithLate() if late else TRANSFORMS[self.transform],
            integrity=self.integrity,
            event_time=EventTime(session_idle=IDLE[self.transform]),
        )

    @property
    def is_linked(self) -> bool:
        return isinstance(self.integrity, Strict) and isinstance(self.integrity.evidence, Linked)

    @property
    def name(self) -> str:
        return f"{self.integrity} {self.transform}"


CLASSES = tuple(list_classes())
CELLS = tuple(Cell(integrity, transform) for integrity in CLASSES for transform in TRANSFORMS)
NAMES = tuple(f"{number}: {integrity.guarantee().partition(':')[0]}" for number, integrity in enumerate(CLASSES))
PLAIN = tuple(Cell(integrity, "plain") for integrity in CLASSES)


def judged(cell: Cell, rows: Iterable[RowWithOrigin[Row]], messages: int, repeats: int = 0) -> RuleOutcome:
    """Return the verdict on the numbers of rows in a range with these counts of messages and noticed repeats."""
    known = {"batch": 1, "until": messages, "messages": messages, "with_rows": -1, "repeats": repeats}
    place = {"place": 1, "topic_id": "id", "topic": "numbers", "partition": 0}
    whole = {"at": 0, "kind": RANGE, "row_number": messages, "offset": 1}
    events: list[dict[str, Any]] = [place | whole | {"values": [known.get(name, 0) for name in RANGE_VALUES]}]
    events += [
        {
            "place": 1,
            "at": row.emit_offset,
            "kind": ROW,
            "row_number": row.number,
            "offset": row.offset,
            "session": row.session,
            "sequence": None if row.cause == "late" else row.sequence,
            "restarts": row.cause == "snapshot",
        }
        for row in rows
    ]
    events.sort(key=lambda each: (each["at"], each["kind"], each["row_number"], each["offset"]))
    batches = [pa.RecordBatch.from_pylist(events, SCHEMA)]
    (found,) = (batch["measured"][0].as_py() for batch in summarize_partitions(batches, rules=(), ends_max=3))
    summary = msgspec.msgpack.decode(found, type=MeasuredPartition).summary
    (rule,) = (each for each in judge_partitions(find_traits(cell.stream).unordered_because) if each.id == "sequence")
    if not rule.evidence(summary):
        return RuleOutcome.NOTHING
    return RuleOutcome.FAILED if rule.breaks(summary) else RuleOutcome.PASSED


def fold(cell: Cell, *messages: SentMessage[Message]) -> tuple[list[RowWithOrigin[Row]], int]:
    """Return the rows that the engine emits, and the repeats and falls that its gate noticed."""
    ran = run(cell.stream, *messages)
    noticed = [each for each in ran.verdicts if each.cause and each.cause != "gap"]
    kept = [each for each in noticed if each.judgement.value in {"accept", "duplicate", "late"}]
    return list(ran.proven), len(kept)


@st.composite
def feeds(draw: st.DrawFn, cell: Cell) -> list[SentMessage[Message]]:
    """Draw two sessions that start, continue, restart and end; numbers and times mostly rise, with exceptions."""
    numbers = {"a": 0, "b": 0}
    links = {"a": 0, "b": 0}
    sent = list[SentMessage[Message]]()
    second = 0
    for _ in range(draw(st.integers(1, 24))):
        session = draw(st.sampled_from("ab"))
        kind = draw(st.sampled_from([Kind.UPDATE] * 6 + [Kind.SNAPSHOT, Kind.END]))
        numbers[session] += draw(st.sampled_from([1] * 12 + [0, 2, -1, -3, 250, 300]))
        links[session] += draw(st.sampled_from([1] * 12 + [0, 2]))
        second += draw(st.sampled_from([0, 1, 1, 3, 15, -8, 40]))
        restarts = kind is Kind.SNAPSHOT and draw(st.booleans())
        numbers[session] = draw(st.integers(0, 4)) if restarts else numbers[session]
        number = draw(st.sampled_from([numbers[session]] * 15 + [None, -7, 2**63 - 1]))
        message = Message(kind, number, max(0, second), links[session] if cell.is_linked else None, restarts=restarts)
        sent.append(SentMessage(value=message, key=session))
    return sent


@settings(max_examples=scale_examples(800))
@given(st.sampled_from(CELLS).flatmap(lambda cell: st.tuples(st.just(cell), feeds(cell))))
def test_no_table_of_the_engine_breaks_the_rule(case: tuple[Cell, list[SentMessage[Message]]]) -> None:
    """A break is critical and stops downstream assets: a false break is worse than a missed break."""
    cell, sent = case
    rows, repeats = fold(cell, *sent)
    assert judged(cell, rows, len(sent), repeats) is not RuleOutcome.FAILED, (cell.name, rows)


def send(cell: Cell, *numbers: int) -> list[SentMessage[Message]]:
    """Return a session: a snapshot and updates with these numbers, one second apart."""
    first, *rest = numbers
    kinds = [(Kind.SNAPSHOT, first), *((Kind.UPDATE, number) for number in rest)]
    return [
        SentMessage(value=Message(kind, number, at, at + 1 if cell.is_linked else None), key="a")
        for at, (kind, number) in enumerate(kinds)
    ]


WRONG = {"a fall": (6, 7, 9, 8, 10), "a repeat": (6, 7, 8, 8, 9), "a wrap": (253, 254, 255, 0, 1)}


@pytest.mark.parametrize("cell", PLAIN, ids=NAMES)
def test_the_rule_judges_exactly_the_classes_that_accept_no_wrong_numbers(cell: Cell) -> None:
    """A class accepts wrong numbers if it applies them and counts nothing: a verdict on them would be false."""
    accepts = False
    for numbers in WRONG.values():
        rows, noticed = fold(cell, *send(cell, *numbers))
        found = [row.sequence or 0 for row in rows]
        unnoticed = sum(after <= before for before, after in itertools.pairwise(found)) - noticed
        accepts |= unnoticed > 0
    reason = find_traits(cell.stream).unordered_because
    assert (reason != "") == accepts
    rows, _ = fold(cell, *send(cell, 6, 7, 8, 9))
    assert judged(cell, rows, 4) is (RuleOutcome.NOTHING if accepts else RuleOutcome.PASSED)


@pytest.mark.parametrize("integrity", CLASSES, ids=NAMES)
def test_wrong_numbers_in_a_table_are_a_break_where_the_class_promises_right_ones(integrity: IntegrityClass) -> None:
    """As after a fault of the engine: rows of a good session with other numbers."""
    for transform, wrong in itertools.product(TRANSFORMS, ("a fall", "a repeat")):
        cell = Cell(integrity, transform)
        rows, _ = fold(cell, *send(cell, 6, 7, 8, 9, 10))
        numbers = dict(zip((6, 7, 8, 9, 10), WRONG[wrong], strict=True))
        forged = [replace(row, sequence=None if row.sequence is None else numbers[row.sequence]) for row in rows]
        promises = not find_traits(cell.stream).unordered_because
        assert judged(cell, forged, 5) is (RuleOutcome.FAILED if promises else RuleOutcome.NOTHING), (transform, wrong)


@pytest.mark.parametrize("start", SessionStart)
def test_strict_by_numbers_is_judged_whatever_begins_and_ends_its_sessions(start: SessionStart) -> None:
    """The outcome is not "nothing to check", even if sessions start at their first message."""
    for transform in TRANSFORMS:
        cell = Cell(Strict(evidence=Sequence(), session_start=start), transform)
        rows, _ = fold(cell, *send(cell, 6, 7, 8))
        assert judged(cell, rows, 3) is RuleOutcome.PASSED
