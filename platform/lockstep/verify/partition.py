"""Compares one partition's log with its ledger rows: the replay, and the expected results after each range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from confluent_kafka import Message

from lockstep.verify.batch_replay import BatchReplay
from lockstep.verify.declaration import Declared
from lockstep.verify.gates.base import LATEST_US, UNKNOWN_US, GateAnswer, GateRules
from lockstep.verify.gates.classes import RulesInForce
from lockstep.verify.kafka_reader import find_offset
from lockstep.verify.ledger import EXPIRED, LedgerChain, LedgerRange, to_stored_time
from lockstep.verify.lookups import NO_LOOKUPS, NotReproducible, RangeLookups
from lockstep.verify.losses import LIFE_ENDS
from lockstep.verify.removed_sessions import NONE_REMOVED, RemovedSessions
from lockstep.verify.replay import Replay
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.rows import RowComparison, RowCursor
from lockstep.verify.side_tables import ReadPastViolation, SideTableCheck
from lockstep.verify.state import StoredState

COUNTS = (
    *("messages", "rows", "with_rows", "accepted_without_row", "skipped", "before_snapshot"),
    *("repeats", "gaps", "dropped", "quarantined", "late", "buffered", "released", "timer_rows"),
    *("lost_sessions", "lost_messages"),
)
"""Columns of the ledger that the replay counts too."""

FIRST_TIMESTAMP_MS = 946_684_800_000
"""2000-01-01 (UTC): the ledger passes over earlier timestamps of Kafka, which no clock can have shown."""
BEGUN_ELSEWHERE = -1
"""Offset from which a newly grown partition is suspended: earlier messages of its sessions are elsewhere."""


class PartitionInputs(msgspec.Struct, frozen=True):
    """Inputs of a partition's proof."""

    declared: Declared
    chain: LedgerChain
    rules: RulesInForce
    folding: Replay
    aside: SideTableCheck
    cursor: RowCursor
    rows: RowComparison
    stored: StoredState
    replay: BatchReplay
    removed: RemovedSessions = NONE_REMOVED
    lookups: RangeLookups = NO_LOOKUPS
    is_compacted: bool = False
    has_buffer: bool = False


class PartitionProof:
    """The proof of one partition, from one of its ranges on.

    Attributes:
        totals: Messages by outcome.
        lost: Offsets that an operator gave up.
        gaps: Offsets without a message, each with the ledger's cause, if any.
        ended: Why the fold could not continue to the end.
    """

    def __init__(self, parts: PartitionInputs, first: int, violations: Violations) -> None:
        self._parts = parts
        self._violations = violations
        self._ranges = parts.chain.ranges
        self._rules = parts.folding.rules
        self._next = first
        self._at = self._ranges[first].read_from if first < len(self._ranges) else parts.chain.until
        self._range_gaps: list[tuple[int, int]] = []
        self._claimed: dict[int, str] = {}
        self._suspend_at: list[int] = []
        self._timestamp_ms = 0
        self._taken_over = frozenset(parts.folding.waiting.held)
        self.totals: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._ended = ""
        self.lost = 0
        self.gaps: list[tuple[int, int, str]] = []
        self.ended = ""
        if first < len(self._ranges):
            self._open()

    @property
    def start(self) -> int:
        """First offset to read."""
        return self._at

    @property
    def lasting_gaps(self) -> list[tuple[int, int, str]]:
        """Those of the gaps whose cause Kafka still shows: compaction removes messages of aborted transactions."""
        return [gap for gap in self.gaps if not (self._parts.is_compacted and gap[2] == "aborted")]

    @property
    def living(self) -> Iterator[str]:
        """Sessions that continue here: known and not suspended."""
        suspended_before = self._parts.folding.suspension.before
        for session, entry in self._parts.folding.sessions.items():
            if not entry.known.waits and entry.known.opened_at >= suspended_before:
                yield session

    @property
    def compared_rows(self) -> int:
        """Number of table rows compared with the fold."""
        return self._parts.rows.compared

    @property
    def compared_states(self) -> int:
        """Number of session states compared with the fold."""
        return self._parts.stored.compared

    @property
    def cleaned_states(self) -> int:
        """The number of ranges whose state was deleted since."""
        return self._parts.stored.cleaned

    @property
    def left_states(self) -> int:
        """The number of ranges of a promotion whose state stayed with the shadow."""
        return self._parts.stored.left

    @property
    def replayed_batches(self) -> int:
        """Number of batches after which the rows were replayed to the states."""
        return self._parts.replay.batches

    @property
    def compared_quarantined(self) -> int:
        """Number of rows of quarantine and late table compared with their messages."""
        return self._parts.aside.quarantine.compared + self._parts.aside.late.compared

    def take(self, messages: Sequence[Message], reached: int) -> None:
        """Fold messages; every offset before `reached` is in them, or holds none."""
        if self.ended:
            return
        try:
            with self._parts.lookups.bind():
                for message in messages:
                    self._take(message)
                self._pass_over(reached)
            self._compare_rows(self._at)
        except ReadPastViolation as past:
            self._end(past.cause)
        except NotReproducible as gone:
            self.ended = f"from offset {self._at} on nothing is proven: {gone}"

    def finish(self, end: int) -> None:
        """After the last message: leftover rows have no message.

        Args:
            end: Where reading ended; before the end of the chain only where Kafka lost the rest.
        """
        chain = self._parts.chain
        parts = self._parts
        if self.ended or end < chain.until:
            return
        # One offset more if timers have emitted at the end of the last range.
        self._compare_rows(chain.until + (parts.folding.applying.last_row[0] == chain.until))
        for batch in parts.cursor.before(2**63 - 1):
            offset = batch["_emit_offset"][0].as_py()
            expected = f"no rows from {chain.until} on"
            rows = f"{batch.num_rows} rows"
            self._violations.add(ViolationKind.ROW_UNCLAIMED, chain.place, offset, expected, rows)
        for offset in parts.folding.waiting.held:
            parts.aside.expect_in_no_side_table(offset)
        for kept in (parts.aside.quarantine, parts.aside.late):
            for offset in kept.outside(range(chain.start, chain.until)):
                if offset not in self._taken_over:  # buffered before the first range, and judged since
                    kept.unread(offset)

    def _open(self) -> None:
        """Start the first range; close those without messages."""
        try:
            with self._parts.lookups.bind():
                self._begin()
                self._close_reached()
        except NotReproducible as gone:
            self.ended = f"nothing is proven: {gone}"

    def _take(self, message: Message) -> None:
        offset = find_offset(message)
        self._pass_over(offset)
        if offset < self._at:
            return  # expired, according to the ledger: `verify` has compared that with Kafka
        self._at = offset + 1
        # An operator gave these offsets up: the stream has read none of them.
        if self._ranges[self._next].is_loss:
            self.lost += 1
        else:
            # Of unproven holes: the sessions of before them are suspended from the next message on.
            while self._suspend_at and self._suspend_at[0] <= offset:
                self._suspend_before(self._suspend_at.pop(0))
            timestamp_ms = message.timestamp()[1]
            # The ledger has the newest plausible timestamp: a wrong clock would hide how old the stream is.
            if FIRST_TIMESTAMP_MS <= timestamp_ms <= self._parts.folding.due.moment.latest_us // 1000:
                self._timestamp_ms = timestamp_ms
            self._parts.folding.take(message, offset)
        self._close_reached()

    def _pass_over(self, reached: int) -> None:
        """Record the offsets up to `reached` as without a message, range by range."""
        while self._at < reached and self._next < len(self._ranges):
            until = min(reached, self._ranges[self._next].until)
            if self._at < until:
                self._check_compacted(self._at, until)
                self._range_gaps.append((self._at, until))
            self._at = max(self._at, until)
            self._close_reached()

    def _check_compacted(self, start: int, until: int) -> None:
        """Raise NotReproducible if the stream read a message there: compaction may remove it at any time since."""
        row = self._ranges[self._next]
        if self._parts.is_compacted and not row.is_loss:
            for offset in range(start, until):
                if offset not in self._claimed:
                    raise NotReproducible(f"the topic is compacted, and Kafka has no message {offset} of it any more")

    def _close_reached(self) -> None:
        while self._next < len(self._ranges) and self._ranges[self._next].until <= self._at:
            self._close()
            self._next += 1
            if self._next < len(self._ranges):
                self._begin()

    def _begin(self) -> None:
        """Apply the suspensions at the start of a range: the driver's, and those of gaps inside."""
        row = self._ranges[self._next]
        parts = self._parts
        folding = parts.folding
        self._timestamp_ms = 0
        parts.aside.batch = row.batch
        parts.aside.is_dropped = row.quarantined > 0 and row.batch <= parts.aside.quarantine.dropped_up_to
        rules = self._use_rules(row)
        parts.lookups.begin(row, self._before if self._next else None)
        self._at = max(self._at, row.read_from)
        self._claimed = _list_claimed(row)
        skipped: Mapping[str, int] = {}
        if self._next:
            skipped = parts.removed.name_skips(self._before.skips, folding.sessions)
        folding.suspension = folding.suspension._replace(skipped=skipped)
        folding.applying.ended.clear()
        self._suspend_at_start(row, rules)
        unproven = [hole.until for hole in row.holes if hole.cause == "unproven"]
        if rules.hole is GateAnswer.SUSPEND:
            self._suspend_at = sorted({*self._suspend_at, *unproven})
        for session in parts.removed.find_sessions(row, folding.sessions.keys() | skipped.keys()):
            folding.remove(session)
            parts.replay.forget(session)
        self._count_decided(row)
        parts.aside.given_up = folding.suspension.before
        planned_us = row.planned_us
        folding.due.moment.latest_us = LATEST_US
        if planned_us is not None:
            folding.due.moment.latest_us = min(LATEST_US, planned_us + parts.declared.skew_us)
        if row.is_empty and planned_us is not None and row.watermark_us is not None:
            self._advance(row, planned_us, row.watermark_us)

    def _suspend_at_start(self, row: LedgerRange, rules: GateRules) -> None:
        folding = self._parts.folding
        start = row.read_from
        has_expired = start > row.start and rules.expired is GateAnswer.SUSPEND
        may_grow = rules.grew is GateAnswer.SUSPEND
        has_grown = may_grow and row.batch in self._parts.chain.grown_at
        if row.is_operator_decision:  # an operator's decision: the suspended sessions, and their offset
            folding.set_suspension(row.suspended_from)
        elif row.suspended_from == BEGUN_ELSEWHERE and (not self._next or (has_grown and not start)) and may_grow:
            folding.set_suspension(BEGUN_ELSEWHERE)
        elif has_expired or (has_grown and row.suspended_from > start):
            folding.set_suspension(max(folding.suspension.before, start))
        elif row.suspended_from == start:  # of a cut log, too, where offsets of the log before it count no more
            folding.set_suspension(start)

    def _count_decided(self, row: LedgerRange) -> None:
        """Count the states that the driver or an operator discarded since the range before.

        An operator's decision is counted by the next batch that reads the state of the partition.
        """
        folding = self._parts.folding
        if row.retired and row.lifecycle in LIFE_ENDS and self._next:
            self._ended = row.lifecycle
        elif row.retired and row.ending and self._next and not self._before.ending:
            self._ended = row.ending  # a rewind to before the end of the topic
        if row.is_operator_decision:
            return
        if self._ended and not row.discarded_by:
            folding.end_topic(self._ended, row.until, has_buffer=self._parts.has_buffer)
            self._ended = ""
        elif not row.discarded_by and folding.suspension.before != folding.losses.before:
            folding.count_suspended()
        previous = self._before if self._next else row
        counted = set(previous.uncounted_skips).difference(row.uncounted_skips)
        skips = {session: offset for session, offset in previous.skips.items() if session in counted}
        for session, offset in self._parts.removed.name_skips(skips, folding.sessions).items():
            folding.count_skipped(session, offset)

    def _use_rules(self, row: LedgerRange) -> GateRules:
        """The rules of a range, which the fold judges by from now on."""
        if (rules := self._parts.rules.find(row.batch)) is not self._rules:
            self._rules = rules
            self._parts.folding.use(rules)
        return rules

    def _advance(self, row: LedgerRange, planned_us: int, watermark_us: int) -> None:
        """Advance the watermark of an idle partition by the clock, if the stream declares so."""
        folding = self._parts.folding
        advance_us = self._parts.declared.advance_us
        if folding.due.is_timed and advance_us is not None and watermark_us <= planned_us - advance_us:
            folding.advance(watermark_us, row.until)

    def _suspend_before(self, offset: int) -> None:
        self._parts.folding.suspend_before(max(self._parts.folding.suspension.before, offset))

    @property
    def _before(self) -> LedgerRange:
        """The row before the current one."""
        return self._ranges[self._next - 1]

    def _close(self) -> None:
        """Check the results of a range."""
        row = self._ranges[self._next]
        parts = self._parts
        self._compare_holes(row)
        self._compare_counts(row)
        self._compare_time(row)
        self._compare_suspensions(row)
        parts.replay.note(parts.folding.applying.emitted)
        parts.replay.compare(row, parts.folding.sessions, parts.folding.applying.touched)
        is_last = self._next == len(self._ranges) - 1
        parts.stored.compare(row, parts.folding, whole=is_last)
        if self._rules.hole is GateAnswer.STOP and any(hole.cause == "unproven" for hole in row.holes):
            raise ReadPastViolation("a hole that nothing explains")

    def _compare_suspensions(self, row: LedgerRange) -> None:
        folding = self._parts.folding
        if folding.suspension.before != row.suspended_from:
            expected = f"suspended from {folding.suspension.before} after batch {row.batch}"
            self._add(ViolationKind.SUSPENSION_DIFFERS, row.until, expected, row.suspended_from)
        skipped = folding.suspension.skipped
        skips = self._parts.removed.name_skips(row.skips, folding.sessions.keys() | skipped.keys())
        recorded = set(skips)
        if self._rules.needs_no_snapshot:  # no session waits: only messages before an offset are quarantined
            waiting = {session for session, before in skipped.items() if before > row.until}
            recorded = {session for session, before in skips.items() if before > row.until}
        else:
            waiting = skipped.keys() - folding.applying.ended
            waiting = {session for session in waiting if not folding.begun(session, skipped[session])}
        if waiting != recorded and not row.is_operator_decision:
            expected = f"sessions {sorted(waiting)} skipped after batch {row.batch}"
            self._add(ViolationKind.SUSPENSION_DIFFERS, row.until, expected, sorted(recorded))

    def _compare_counts(self, row: LedgerRange) -> None:
        counts = self._parts.aside.counts
        for name in COUNTS:
            self.totals[name] += counts[name]
            if getattr(row, name) not in {counts[name], None}:  # None: of an older release
                expected = f"{counts[name]} {name} in batch {row.batch}"
                self._add(ViolationKind.COUNT_DIFFERS, row.start, expected, getattr(row, name))
        counts.clear()
        offset, rows = self._parts.folding.applying.last_row
        emitted = rows if offset == row.until else 0
        if row.rows_emitted != emitted:
            expected = f"{emitted} rows emitted at offset {row.until} by batch {row.batch}"
            self._add(ViolationKind.COUNT_DIFFERS, row.until, expected, row.rows_emitted)

    def _compare_time(self, row: LedgerRange) -> None:
        due = self._parts.folding.due
        at_us = None if due.moment.at_us == UNKNOWN_US else due.moment.at_us
        if due.is_timed and row.watermark_us != at_us:
            expected = f"watermark {at_us} after batch {row.batch}"
            self._add(ViolationKind.WATERMARK_DIFFERS, row.until, expected, row.watermark_us)
        low, high = self._parts.aside.take_times()
        times = {"first_event_time": to_stored_time(low), "last_event_time": to_stored_time(high)}
        if self._timestamp_ms:  # a range without one repeats the one of an earlier range
            times["newest_timestamp"] = to_stored_time(self._timestamp_ms * 1_000)
        for name, time in times.items():
            if getattr(row, name) != time:
                expected = f"{name} {time} in batch {row.batch}"
                self._add(ViolationKind.TIME_DIFFERS, row.start, expected, getattr(row, name))

    def _compare_holes(self, row: LedgerRange) -> None:
        if row.is_loss:
            self._range_gaps.clear()
            return
        claimed = self._claimed
        missing = set[int]()
        for start, until in self._range_gaps:
            missing.update(range(start, until))
        self._range_gaps.clear()
        for start, until in _runs(missing - claimed.keys()):
            expected = f"offsets {start} to {until - 1} in the ledger's holes of batch {row.batch}"
            self._add(ViolationKind.HOLE_UNEXPLAINED, start, expected, f"holes {_shown(row)}")
        for start, until in _runs(claimed.keys() - missing):
            expected = f"messages at {start} to {until - 1}"
            self._add(ViolationKind.HOLE_FALSE, start, expected, f"batch {row.batch} has them as {claimed[start]}")
        self.gaps += [(offset, offset + 1, claimed[offset]) for offset in sorted(missing & claimed.keys())]

    def _compare_rows(self, until: int) -> None:
        parts = self._parts
        emitted = parts.folding.applying.emitted
        parts.replay.note(emitted)
        # Rows emitted at `until` may follow: timers emit at the end of a range.
        later = emitted.since(emitted.emitted_before(until))
        parts.replay.drop(len(emitted.rows))
        parts.folding.applying.emitted = later
        parts.rows.compare(emitted, parts.cursor.before(until), parts.aside.quarantine)

    def _end(self, cause: str) -> None:
        self.ended = f"from offset {self._at - 1} on nothing is proven: {cause}"
        expected = f"the stream stops ({cause})"
        self._add(ViolationKind.PAST_VIOLATION, self._at - 1, expected, f"read up to {self._parts.chain.until}")

    def _add(self, kind: ViolationKind, offset: int, expected: object, found: object) -> None:
        self._violations.add(kind, self._parts.chain.place, offset, expected, found)


def _list_claimed(row: LedgerRange) -> dict[int, str]:
    """The offsets without a message, by the ledger, with their causes; expired ones are compared elsewhere."""
    claimed = dict[int, str]()
    for hole in row.holes:
        if hole.cause != EXPIRED:
            claimed.update(dict.fromkeys(range(hole.start, hole.until), hole.cause))
    return claimed


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive offsets, as [start, until)."""
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


def _shown(row: LedgerRange) -> str:
    return ", ".join(f"{hole.start} to {hole.until - 1} ({hole.cause})" for hole in row.holes) or "none"
