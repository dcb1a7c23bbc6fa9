"""Measures partitions from their events: ledger ranges, rows, and facts from earlier checks. Pure.

Runs on the executors, on Arrow batches in the order of Spark's sort. Each row then has the range that covers it,
whether the row before has its coordinates, and the newest number of its session. Ranges are compared with their rows
one by one, so that errors of two batches cannot cancel out. Memory holds one Arrow batch, the ranges that cover it, and
the sessions of one partition.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.features.quality.rules import COUNTS, PartitionSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

REACHED, RANGE, END, ROW = range(4)
"""Kinds of events, in their order at an offset: the offset that an earlier check reached, a ledger range, the last row
of a session before the increment, a row."""
ORDER: Final = ("place", "at", "kind", "row_number", "offset")
"""Columns that events are sorted by; `place` is a hash of topic id and partition, which rows do not repeat."""
RANGE_VALUES: Final = (
    "batch",
    "until",
    "messages",
    "ledger_rows",
    "with_rows",
    "silent_rows",
    "timer_rows",
    "released",
    "buffered",
    "late",
    "accepted_without_row",
    "skipped",
    "dropped",
    "quarantined",
    "repeats",
    "holes",
    "unproven_holes",
    "accepted_losses",
    "erased_rows",
    "erased_messages",
)
"""Values of a range, which starts at its offset: those of the ledger; `with_rows` is -1 if that has none. A reached
offset has itself as its only value, the end of a session the number of its message."""
RULES_OF_MASK: Final = 62
"""Rules whose violations one integer holds, a bit each."""


class SessionEnd(msgspec.Struct, frozen=True, array_like=True):
    """The last numbered row of a session, up to a checked version.

    Attributes:
        topic_id: Kafka's topic id.
        partition: Partition number.
        session: The session.
        sequence: The producer's number.
        at: Emit offset of the row.
        number: Number of its message among those of the partition that emitted rows at their own offset, 0 for the
            last, else negative.
        is_own: Whether its emit offset is that of its message, which was not buffered.
    """

    topic_id: str
    partition: int
    session: str
    sequence: int
    at: int
    number: int
    is_own: bool = True


class MeasuredPartition(msgspec.Struct, frozen=True, array_like=True):
    """The measurements of a partition.

    Attributes:
        place: Hash of its topic id and number.
        summary: All of them; without topic id if it has rows only.
        ends: The last numbered row of each session that has rows, the newest first.
    """

    place: int
    summary: PartitionSummary
    ends: tuple[SessionEnd, ...]


def summarize_partitions(
    batches: Iterable[pa.RecordBatch], *, rules: Sequence[str], ends_max: int
) -> Iterator[pa.RecordBatch]:
    """The measurements of each partition, encoded, one a row.

    Args:
        batches: Events with the columns of `ORDER`, sorted by these, and `topic_id`, `topic`, `partition`, `session`,
            `sequence`, `event_time` (microseconds since 1970, UTC), `restarts` (whether a snapshot made the row),
            `values` (a list of integers) and `violated` (a list of masks, null if a row violates no rule).
        rules: Ids of the user's rules, in the order of their bits.
        ends_max: Session ends of a partition, at most.
    """
    open_: _Partition | None = None
    for batch in batches:
        for part in _split_by_partition(batch):
            # The hash is 64 bits wide: two partitions of a stream do not have the same in practice.
            place = part["place"][0].as_py()
            if open_ is not None and open_.place != place:
                yield _encode(open_.finish(ends_max))
                open_ = None
            open_ = open_ or _Partition(place, rules)
            open_.add(part)
    if open_ is not None:
        yield _encode(open_.finish(ends_max))


def _encode(measured: MeasuredPartition) -> pa.RecordBatch:
    encoded = pa.array([msgspec.msgpack.encode(measured)], pa.binary())
    return pa.RecordBatch.from_arrays([encoded], ["measured"])


def _split_by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    begins = 1 + np.flatnonzero(np.diff(batch["place"].to_numpy()))
    edges = [0, *begins.tolist(), batch.num_rows]
    for first, until in pairwise(edges):
        yield batch.slice(first, until - first)


class _Partition:
    """One partition, batch by batch of its events."""

    def __init__(self, place: int, rules: Sequence[str]) -> None:
        self.place = place
        self._topic_id = ""
        self._topic = ""
        self._partition = 0
        self._times = list[int]()
        self._counts = Counter[str]()
        self._violations = dict.fromkeys(rules, 0)
        self._messages = 0
        self._last = _Events.before_all()
        self._ranges = _Ranges()
        self._sessions = _Sessions()

    def add(self, part: pa.RecordBatch) -> None:
        """Measure the events that follow."""
        events = _Events.of(part)
        joined = self._last.join(events)
        follows_row = joined.kind[:-1] == ROW
        is_row = events.kind == ROW
        is_again = follows_row & (joined.at[:-1] == events.at) & (joined.row_number[:-1] == events.row_number)
        is_new_row = is_row & ~is_again
        is_new_message = is_row & ~(follows_row & (joined.offset[:-1] == events.offset))
        numbers = self._messages + np.cumsum(is_new_message & events.own)
        self._counts["rows"] += int(is_row.sum())
        self._counts["distinct_rows"] += int(is_new_row.sum())
        self._ranges.add(events, part["values"])
        self._ranges.place(events.at[is_row], is_new_row[is_row], is_new_message[is_row])
        self._ranges.close(int(events.at[-1]))
        self._sessions.add(events, part, numbers)
        self._messages = int(numbers[-1])
        self._last = events.last
        self._add_values(part)

    def _add_values(self, part: pa.RecordBatch) -> None:
        """Names, event times and violations."""
        named = part.select(["topic_id", "topic", "partition"]).drop_null()
        if named.num_rows:
            self._topic_id, self._topic, self._partition = (column[-1].as_py() for column in named.columns)
        event_times = part["event_time"].drop_null()
        if len(event_times):
            times = [*self._times, pc.min(event_times).as_py(), pc.max(event_times).as_py()]
            self._times = [min(times), max(times)]
        # A row that violates no rule has null instead of masks, which `list_flatten` leaves out.
        masks = pc.list_flatten(part["violated"]).to_numpy()
        masks_of_rows = masks.reshape(-1, count_masks(len(self._violations)))
        for number, rule in enumerate(self._violations):
            bits = masks_of_rows[:, number // RULES_OF_MASK] >> (number % RULES_OF_MASK)
            self._violations[rule] += int((bits & 1).sum())

    def finish(self, ends_max: int) -> MeasuredPartition:
        """The measurements of all its events."""
        counts = self._counts + self._ranges.finish(self._counts["rows"]) + self._sessions.finish()
        first, last = self._times or (None, None)
        summary = PartitionSummary(
            topic_id=self._topic_id,
            topic=self._topic,
            partition=self._partition,
            **{name: counts[name] for name in COUNTS},
            first_event_time_us=first,
            last_event_time_us=last,
            reached=self._ranges.until,
            violations=self._violations,
            new_messages=self._messages,
        )
        ends = self._sessions.find_ends(summary, ends_max)
        return MeasuredPartition(self.place, summary, ends)


def count_masks(rules: int) -> int:
    """Integers that hold the violations of a row, one at least."""
    return 1 + max(0, rules - 1) // RULES_OF_MASK


@dataclass(frozen=True)
class _Events:
    """The columns by which events are compared with each other."""

    kind: Integers
    at: Integers
    row_number: Integers
    offset: Integers

    @classmethod
    def before_all(cls) -> _Events:
        """One event, of no kind."""
        return cls(*np.full((4, 1), -1, np.int64))

    @classmethod
    def of(cls, part: pa.RecordBatch) -> _Events:
        """The events of an Arrow batch."""
        return cls(*(part[name].to_numpy() for name in ("kind", "at", "row_number", "offset")))

    def join(self, later: _Events) -> _Events:
        """These and later events."""
        return _Events(*(np.concatenate(pair) for pair in zip(self._columns, later._columns, strict=True)))

    @property
    def last(self) -> _Events:
        """The last event."""
        return _Events(*(column[-1:] for column in self._columns))

    @property
    def own(self) -> Flags:
        """Whether the offset is that of the row's message, which was not buffered and is not a timer's."""
        is_own: Flags = self.offset == self.at
        return is_own

    @property
    def _columns(self) -> tuple[Integers, ...]:
        return self.kind, self.at, self.row_number, self.offset


class _Ranges:
    """The ledger ranges of a partition, compared with the rows that they cover.

    A range covers the offsets that no earlier range covers, so each offset belongs to one range. Rows that timers
    emitted while a partition was idle belong to an empty range, and a later range covers their offset: if there are
    any, or a session was erased, rows are compared by partition.
    """

    def __init__(self) -> None:
        self.until: int | None = None
        self._counts = Counter[str]()
        self._reached = -1
        self._batch = -1
        self._open = np.zeros((len(_COVER), 0), np.int64)

    def add(self, events: _Events, values: pa.Array[Any]) -> None:
        """Count ranges that follow."""
        is_reached = events.kind == REACHED
        if is_reached.any():
            self._reached = int(_flatten_values(values, is_reached)[0])
        is_range = events.kind == RANGE
        if is_range.any():
            columns = _flatten_values(values, is_range).reshape(-1, len(RANGE_VALUES)).T
            self._add(events.at[is_range], dict(zip(RANGE_VALUES, columns, strict=True)))

    def _add(self, start: Integers, ledger: dict[str, Integers]) -> None:
        until = ledger["until"]
        # Without an earlier range, the first one follows itself: the start of a stream is not a gap.
        reached_before = int(start[0]) if self._reached < 0 else self._reached
        reached = np.maximum.accumulate(np.concatenate([[reached_before], until]))
        self._reached = int(reached[-1])
        reached = reached[:-1]
        self.until = max(int(until.max()), -1 if self.until is None else self.until)
        ledger |= {
            "offsets_read": until - start,
            "gap_offsets": np.maximum(start - reached, 0),
            "overlap_offsets": np.maximum(np.minimum(until, reached) - start, 0),
            "unexplained_offsets": np.abs(until - start - sum(ledger[name] for name in _EXPLAINED)),
            "batches": np.diff(ledger["batch"], prepend=self._batch) != 0,
        }
        self._batch = int(ledger["batch"][-1])
        for name in ledger.keys() - {"batch", "until", "with_rows"}:
            self._counts[name] += int(ledger[name].sum())
        expected = sum(ledger[name] for name in _ARRIVED) - sum(ledger[name] for name in _WITHOUT_ROWS)
        # A range starts only after the earlier ranges, so that no row is counted for two of them.
        begin = np.maximum(start, reached)
        none = np.zeros_like(start)
        ranges = np.stack([begin, until, ledger["ledger_rows"], ledger["with_rows"], expected, none, none])
        covers = until > begin
        self._open = np.concatenate([self._open, ranges[:, covers]], axis=1)
        self._compare(ranges[:, ~covers])

    def place(self, at: Integers, is_new_row: Flags, is_new_message: Flags) -> None:
        """Count rows, in order of their emit offsets, for the ranges that cover them."""
        begin, until = self._open[:2]
        covering = np.searchsorted(begin, at, side="right") - 1
        inside = covering >= 0
        inside[inside] = at[inside] < until[covering[inside]]
        self._counts["rows_outside"] += int((~inside).sum())
        for number, is_new in ((-2, is_new_row), (-1, is_new_message)):
            self._open[number] += np.bincount(covering[inside & is_new], minlength=len(begin))

    def close(self, at: int) -> None:
        """Compare the ranges that cover no offset from one on."""
        closed = max(0, int(np.searchsorted(self._open[0], at, side="right")) - 1)
        self._compare(self._open[:, :closed])
        self._open = self._open[:, closed:]

    def _compare(self, closed: Integers) -> None:
        _, _, ledger_rows, with_rows, expected, rows, messages = closed
        is_counted = with_rows >= 0
        unaccounted = expected - np.where(is_counted, with_rows, messages)
        differences = {
            "messages_with_rows": messages,
            "rows_of_ranges": np.abs(ledger_rows - rows),
            "unaccounted": np.abs(unaccounted),
            "unaccounted_known": np.abs(unaccounted[is_counted]),
            "with_rows": np.abs(with_rows - messages)[is_counted],
            "net": np.where(is_counted, with_rows - messages, unaccounted),
        }
        for name, counts in differences.items():
            self._counts[name] += int(counts.sum())

    def finish(self, rows: int) -> Counter[str]:
        """All counts, of a partition with so many rows."""
        self._compare(self._open)
        counts = self._counts
        # Rows of timers and of erased sessions cannot be assigned to a range: only sums can be compared then.
        by_partition = abs(counts["ledger_rows"] + counts["silent_rows"] - counts["erased_rows"] - rows)
        may_differ = counts["silent_rows"] + counts["erased_rows"] > 0
        counts["row_differences"] = by_partition if may_differ else counts["rows_of_ranges"]
        if counts["erased_messages"]:
            counts["unexplained_messages"] = counts["unaccounted_known"]
            difference = abs(counts["net"] - counts["erased_messages"])
        else:
            counts["unexplained_messages"] = counts["unaccounted"]
            difference = counts["with_rows"]
        # Rows that timers emit would count as further messages with rows, so these are not compared.
        if not counts["timer_rows"]:
            counts["unexplained_messages"] += difference
        return counts


def _flatten_values(values: pa.Array[Any], chosen: Flags) -> Integers:
    """The values of some events, one after another."""
    flat: Integers = pc.list_flatten(values.filter(pa.array(chosen))).to_numpy()
    return flat


_EXPLAINED: Final = ("messages", "holes", "accepted_losses")
_ARRIVED: Final = ("messages", "released")
_WITHOUT_ROWS: Final = ("accepted_without_row", "skipped", "dropped", "quarantined", "late", "buffered")
_COVER: Final = ("begin", "until", "ledger_rows", "with_rows", "expected", "rows", "messages")
"""Of a range that covers offsets: the first, the one after the last; rows and messages with rows by the ledger,
messages with rows by its other counts; distinct rows and messages with rows of the table."""


class _Sessions:
    """The numbers of the sessions of a partition.

    A snapshot restarts the numbers, so its rows are not compared with the rows before. A snapshot may also emit no row:
    a restart is excluded only if every offset between two rows has rows. Those of timers and of released
    messages are not: they belong to earlier offsets. If the first of the two rows was released, its own emit offset may
    be the snapshot's.
    """

    def __init__(self) -> None:
        self._index = dict[str, int]()
        self._counts = Counter[str]()
        self._newest = np.zeros((4, 0), np.int64)
        self._is_numbered = np.zeros(0, np.bool_)
        self._has_rows = np.zeros(0, np.bool_)

    def add(self, events: _Events, part: pa.RecordBatch, numbers: Integers) -> None:
        """Compare rows that follow; those before the increment are first."""
        chosen = events.kind >= END
        if not chosen.any():
            return
        mask = pa.array(chosen)
        sequence = part["sequence"].filter(mask)
        ids = self._find_ids(part["session"].filter(mask))
        is_row = events.kind[chosen] == ROW
        self._has_rows[ids[is_row]] = True
        number = numbers[chosen]
        # Only the ends of earlier sessions have values here: the numbers of their messages.
        number[~is_row] = pc.list_flatten(part["values"].filter(mask)).to_numpy()
        is_numbered = sequence.is_valid().to_numpy(zero_copy_only=False)
        is_restart = part["restarts"].filter(mask).fill_null(fill_value=False)
        is_compared = is_row & ~is_restart.to_numpy(zero_copy_only=False)
        facts = np.stack([sequence.fill_null(0).to_numpy(), events.at[chosen], number, events.own[chosen]])
        self._counts["numbered_rows"] += int((is_row & is_numbered).sum())
        self._compare(ids[is_numbered], facts[:, is_numbered], is_compared[is_numbered])

    def _find_ids(self, session: pa.Array[Any]) -> Integers:
        encoded = session.dictionary_encode()
        index = self._index
        ids = np.array([index.setdefault(str(name), len(index)) for name in encoded.dictionary.to_pylist()], np.int64)
        more = len(index) - len(self._has_rows)
        self._newest = np.pad(self._newest, [(0, 0), (0, more)])
        self._is_numbered = np.pad(self._is_numbered, (0, more))
        self._has_rows = np.pad(self._has_rows, (0, more))
        ids_of_rows: Integers = ids[encoded.indices.to_numpy()]
        return ids_of_rows

    def _compare(self, ids: Integers, facts: Integers, is_compared: Flags) -> None:
        if not len(ids):
            return
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        facts = facts[:, order]
        compared = is_compared[order]
        begins = np.flatnonzero(np.diff(ids, prepend=-1))
        facts_before = np.roll(facts, 1, axis=1)
        # The first row of a session follows its newest row in the batches before.
        facts_before[:, begins] = self._newest[:, ids[begins]]
        compared[begins] &= self._is_numbered[ids[begins]]
        sequence, emit_offset, number, _ = facts
        sequence_before, emit_offset_before, number_before, is_own_before = facts_before
        # More offsets than messages with rows in between: one of the others may have been the snapshot.
        may_restart = (is_own_before == 0) | (emit_offset - emit_offset_before > number - number_before)
        falls = compared & (sequence < sequence_before)
        repeats = compared & (sequence == sequence_before)
        self._counts["sequence_falls"] += int((falls & ~may_restart).sum())
        # Several rows of one message have its number and emit offset.
        self._counts["sequence_repeats"] += int((repeats & ~may_restart & (emit_offset > emit_offset_before)).sum())
        self._counts["sequence_restarts"] += int(((falls | repeats) & may_restart).sum())
        ends = np.append(begins[1:], len(ids)) - 1
        self._newest[:, ids[ends]] = facts[:, ends]
        self._is_numbered[ids[ends]] = True

    def finish(self) -> Counter[str]:
        """All counts."""
        return self._counts

    def find_ends(self, summary: PartitionSummary, ends_max: int) -> tuple[SessionEnd, ...]:
        """The last numbers of sessions with rows, the newest first."""
        with_rows = np.flatnonzero(self._has_rows & self._is_numbered)
        newest = with_rows[np.argsort(-self._newest[1, with_rows], kind="stable")][:ends_max]
        names = list(self._index)
        facts = self._newest[:, newest].T.tolist()
        key = summary.topic_id, summary.partition
        ends: list[SessionEnd] = []
        for session, (sequence, emit_offset, number, is_own) in zip(newest.tolist(), facts, strict=True):
            # Counted from the last message, so that the next increment moves the number back by its messages.
            from_last = number - summary.new_messages
            ends.append(SessionEnd(*key, names[session], sequence, emit_offset, from_last, bool(is_own)))
        return tuple(ends)
