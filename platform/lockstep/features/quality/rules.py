"""The rules of a complete table, and their results. Pure.

A rule turns the measurements of one place (a partition, a data file) into a number of breaks; the
threshold is none. It also counts its evidence: without any, the outcome is "nothing to check yet",
never "passed".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Final, Generic, TypeVar

import msgspec

from lockstep.declare.rules import BUILT_IN, Rule, Severity
from lockstep.model.position import TopicIdPartition

P = TypeVar("P", bound=msgspec.Struct)

Cell = int | str | None
"""A value of a table for people."""


class PartitionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of table and ledger of one topic-partition. Counts, unless stated otherwise.

    Attributes:
        topic_id: Kafka's topic id.
        topic: Its name.
        partition: Partition number.
        batches: Batches that have a ledger row of it.
        rows: Rows in the table.
        distinct_rows: Distinct (topic id, partition, emit offset, row).
        rows_outside: Rows whose emit offset no ledger range covers.
        ledger_rows: Rows written, according to the ledger.
        row_differences: Rows by which table and ledger differ, summed batch by batch.
        offsets_read: Offsets in all ledger ranges.
        messages: Messages read, according to the ledger.
        messages_with_rows: Messages that have rows in the table.
        accepted_without_row: Accepted messages that emitted none.
        skipped: Messages of kind SKIP.
        dropped: Messages neither applied nor stored.
        quarantined: Messages in quarantine, not applied.
        released: Messages buffered by an earlier batch, and applied or quarantined by this batch.
        buffered: Messages buffered for a later batch.
        late: Messages in the late table.
        timer_rows: Times that a timer, the end of an idle session or a late message emitted rows.
        silent_rows: Rows that timers emitted while the partition was idle.
        repeats: Messages that the gate accepted although they were duplicates or went back.
        holes: Offsets that held no message.
        unproven_holes: Those of them without a proven cause.
        accepted_losses: Offsets that an operator accepted as lost.
        gap_offsets: Offsets between ledger ranges that no range covers.
        overlap_offsets: Offsets that more than one ledger range covers.
        unexplained_offsets: Offsets read that are neither message, hole nor accepted loss (or
            the other way round), summed batch by batch.
        unexplained_messages: Messages read that are neither in the table nor counted under a
            cause (or the other way round), summed batch by batch.
        numbered_rows: Rows that carry the producer's sequence.
        sequence_falls: Times a session's sequence fell although no session can have restarted.
        sequence_restarts: Times it fell or was repeated after a message without rows, when the
            session may have ended and restarted.
        sequence_repeats: Times two consecutive messages of a session carried the same number although
            no session can have restarted.
        first_event_time_us: Smallest event time, microseconds since 1970 (UTC).
        last_event_time_us: Largest event time, microseconds since 1970 (UTC).
        reached: Offset after the last ledger range; None without one.
        violations: Rows that violate each of the user's rules, by its id.
        new_messages: Messages of the increment that emitted rows at their own offsets.
    """

    topic_id: str
    topic: str
    partition: int
    batches: int
    rows: int
    distinct_rows: int
    rows_outside: int
    ledger_rows: int
    row_differences: int
    offsets_read: int
    messages: int
    messages_with_rows: int
    accepted_without_row: int
    skipped: int
    dropped: int
    quarantined: int
    released: int
    buffered: int
    late: int
    timer_rows: int
    silent_rows: int
    repeats: int
    holes: int
    unproven_holes: int
    accepted_losses: int
    gap_offsets: int
    overlap_offsets: int
    unexplained_offsets: int
    unexplained_messages: int
    numbered_rows: int
    sequence_falls: int
    sequence_restarts: int
    sequence_repeats: int
    first_event_time_us: int | None
    last_event_time_us: int | None
    reached: int | None = None
    violations: dict[str, int] = {}
    new_messages: int = 0

    def add(self, later: PartitionSummary) -> PartitionSummary:
        """These measurements and those of a later increment. The violations are those of the increment."""
        counts = {name: getattr(self, name) + getattr(later, name) for name in COUNTS}
        first = [time for time in (self.first_event_time_us, later.first_event_time_us) if time is not None]
        last = [time for time in (self.last_event_time_us, later.last_event_time_us) if time is not None]
        return msgspec.structs.replace(
            later,
            **counts,
            first_event_time_us=min(first, default=None),
            last_event_time_us=max(last, default=None),
            reached=self.reached if later.reached is None else later.reached,
        )

    @property
    def place(self) -> TopicIdPartition:
        """Its topic id and number."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def duplicates(self) -> int:
        """Rows whose coordinates another row already has."""
        return self.rows - self.distinct_rows


_NOT_COUNTS = (
    "topic_id",
    "topic",
    "partition",
    "first_event_time_us",
    "last_event_time_us",
    "reached",
    "violations",
    "new_messages",
)
COUNTS: Final = tuple(name for name in PartitionSummary.__struct_fields__ if name not in _NOT_COUNTS)
_NOTHING: Final = PartitionSummary(
    **dict.fromkeys(COUNTS, 0),  # type: ignore[arg-type]  # they are the counts
    topic_id="",
    topic="(forgotten topics)",
    partition=0,
    first_event_time_us=None,
    last_event_time_us=None,
)


class FileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The log's measurements of the provenance columns of one data file.

    Attributes:
        path: Relative to the table.
        rows: Rows in the file.
        nulls: Nulls in NOT NULL provenance columns.
        uncounted: Rows of provenance columns whose nulls the file's statistics do not count.
        size: Bytes.
    """

    path: str
    rows: int
    nulls: int
    uncounted: int
    size: int = 0


@dataclass(frozen=True)
class SummaryRule(Generic[P]):
    """One promise about the table.

    Attributes:
        id: Stable name, in results, asset checks and metadata.
        sentence: The promise, for people.
        breaks: Number of breaks at one place; none is allowed.
        evidence: Amount of evidence at that place.
        missing: Meaning of no evidence anywhere.
        shown: Fields of the place that explain a break, in reading order.
        counted: Column that shows the number of breaks of the place; none by default.
        severity: How bad a break is.
        blocking: Downstream assets wait while it is broken.
    """

    id: str
    sentence: str
    breaks: Callable[[P], int]
    evidence: Callable[[P], int]
    missing: str
    shown: tuple[str, ...]
    counted: str = ""
    severity: Severity = Severity.CRITICAL
    blocking: bool = True


class RuleOutcome(Enum):
    """The outcome of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "check crashed"
    NOTHING = "nothing to check yet"
    NOTHING_NEW = "nothing new"


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule.

    Attributes:
        rule: The rule's id.
        sentence: The promise.
        outcome: Its outcome.
        observed: Breaks found in all; None when the check crashed.
        threshold: Breaks allowed.
        unexpected: Places (partitions or files) with breaks.
        checked: Places checked.
        worst: The worst places, worst first; each with the same columns.
        reason: Why it crashed, or why there was nothing to check.
        severity: How bad a break is.
        blocking: Downstream assets wait while it is broken.
        rows: Rows checked; 0 for rules that are not about rows.
        sample: Coordinates of the first rows that break it.
    """

    rule: str
    sentence: str
    outcome: RuleOutcome
    observed: int | None
    threshold: int = 0
    unexpected: int = 0
    checked: int = 0
    worst: tuple[dict[str, Cell], ...] = ()
    reason: str = ""
    severity: Severity = Severity.CRITICAL
    blocking: bool = True
    rows: int = 0
    sample: tuple[dict[str, Cell], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there was something to check and it held."""
        return self.outcome is RuleOutcome.PASSED

    @property
    def crashed(self) -> bool:
        """Whether the check itself failed, without a result."""
        return self.outcome is RuleOutcome.CRASHED


def _incomplete(partition: PartitionSummary) -> int:
    ranges = partition.gap_offsets + partition.overlap_offsets
    outside = max(0, partition.rows_outside - partition.silent_rows)  # their range may still be committed
    return ranges + partition.unexplained_offsets + partition.unexplained_messages + outside


PARTITION: Final = ("topic", "topic_id", "partition")


_COMPLETENESS: Final = SummaryRule[PartitionSummary](
    id="completeness",
    sentence=BUILT_IN["completeness"],
    breaks=_incomplete,
    evidence=lambda partition: partition.offsets_read + partition.rows,
    missing="no offset was read yet",
    shown=(
        *PARTITION,
        "gap_offsets",
        "overlap_offsets",
        "unexplained_offsets",
        "unexplained_messages",
        "rows_outside",
    ),
)
_ROWS_MATCH_LEDGER: Final = SummaryRule[PartitionSummary](
    id="rows_match_ledger",
    sentence=BUILT_IN["rows_match_ledger"],
    breaks=lambda partition: partition.row_differences,
    evidence=lambda partition: partition.rows + partition.ledger_rows,
    missing="no row was written yet",
    shown=(*PARTITION, "row_differences", "distinct_rows", "ledger_rows"),
)
_NO_DUPLICATES: Final = SummaryRule[PartitionSummary](
    id="no_duplicates",
    sentence=BUILT_IN["no_duplicates"],
    breaks=lambda partition: partition.duplicates,
    evidence=lambda partition: partition.rows,
    missing="no row was written yet",
    shown=(*PARTITION, "rows", "distinct_rows"),
)


def judge_partitions(unordered_because: str = "") -> tuple[SummaryRule[PartitionSummary], ...]:
    """The rules about partitions.

    Args:
        unordered_because: See `IntegrityClass.unordered_because`: the numbers are judged if it is empty.
    """
    is_ordered = not unordered_because
    sequence = SummaryRule[PartitionSummary](
        id="sequence",
        sentence=BUILT_IN["sequence"],
        breaks=_not_rising if is_ordered else lambda _: 0,
        evidence=lambda partition: partition.numbered_rows if is_ordered else 0,
        missing=unordered_because or "no row carries a sequence",
        shown=(*PARTITION, "sequence_falls", "sequence_repeats", "sequence_restarts", "repeats"),
    )
    return (_COMPLETENESS, _ROWS_MATCH_LEDGER, _NO_DUPLICATES, sequence)


def judge_rows(rule: Rule) -> SummaryRule[PartitionSummary]:
    """A user's rule about rows, by the number of rows of a partition that violate it."""
    return SummaryRule(
        id=rule.name,
        sentence=rule.promise,
        breaks=lambda partition: partition.violations.get(rule.name, 0),
        evidence=lambda partition: partition.rows,
        missing="no row was written yet",
        shown=(*PARTITION, "rows"),
        counted="violations",
        severity=rule.severity,
        blocking=rule.blocking,
    )


def merge_forgotten(
    partitions: Iterable[PartitionSummary],
    living: Container[TopicIdPartition],
    rules: Iterable[SummaryRule[PartitionSummary]],
) -> tuple[PartitionSummary, ...]:
    """The measurements, with one sum for all forgotten partitions that break no rule.

    Topics come and go for years: each of them would stay in the result of every later check.

    Args:
        partitions: By partition, the sum of an earlier call among them.
        living: Partitions that the stream knows, by (topic id, partition).
        rules: The rules; no sum of partitions that keep them breaks one.
    """
    separate = list[PartitionSummary]()
    gone = list[PartitionSummary]()
    for partition in partitions:
        if partition.place in living or any(rule.breaks(partition) for rule in rules):
            separate.append(partition)
        else:
            gone.append(partition)
    if not gone:
        return tuple(separate)
    # The sum is the later operand of each addition, as `add` keeps the names of that one: "(forgotten topics)".
    total = reduce(lambda total, partition: partition.add(total), gone, _NOTHING)
    return (msgspec.structs.replace(total, reached=None), *separate)


PROOF_NOT_NULL: Final = SummaryRule[FileSummary](
    id="proof_not_null",
    sentence=BUILT_IN["proof_not_null"],
    breaks=lambda file: file.nulls + file.uncounted,
    evidence=lambda file: file.rows,
    missing="no row was written yet",
    shown=("path", "rows", "nulls", "uncounted"),
)


def _not_rising(partition: PartitionSummary) -> int:
    """Falls and repeats, except those that the gate itself noticed and accepted."""
    return max(0, partition.sequence_falls + partition.sequence_repeats - partition.repeats)
