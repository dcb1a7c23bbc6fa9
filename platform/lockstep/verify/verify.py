"""`lockstep verify`, from tables and Kafka to the report."""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
from confluent_kafka import Message

from lockstep.declare.decoders.base import Registry
from lockstep.declare.discovery import digest_code
from lockstep.declare.stream import format_integrity
from lockstep.errors import LockstepError, StateError
from lockstep.feature import load_parts
from lockstep.model.position import TopicIdPartition, TopicNamePartition
from lockstep.progress import report_progress
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.table.commit import Base, OutputLog
from lockstep.table.follower_positions import read_follower_positions
from lockstep.table.head import FIRST_BATCH, Head, Imported, Origin
from lockstep.table.layout import StreamFolders, require_root
from lockstep.verify.archive import StoredArchive
from lockstep.verify.batch_replay import BatchReplay, RowBudget
from lockstep.verify.declaration import AnyStream, Declared, find_declaration
from lockstep.verify.followers import check_followers
from lockstep.verify.gates.base import GateRules, NotProvable, ReplayWatermark
from lockstep.verify.gates.classes import RulesInForce, make_rules
from lockstep.verify.gates.other_class import OtherClass, find_first_judged
from lockstep.verify.kafka_reader import TOGETHER_MAX, BufferedRange, KafkaTopicLog, WantedRange, find_offset
from lockstep.verify.ledger import (
    LOSSES,
    LedgerChain,
    LedgerRange,
    find_first_provable,
    find_first_repeatable,
    find_first_with_state,
    make_chains,
)
from lockstep.verify.lookups import LookupVersions, NotReproducible, RangeLookups
from lockstep.verify.partition import PartitionInputs, PartitionProof
from lockstep.verify.read_stored import read_stored
from lockstep.verify.removed_sessions import NONE_REMOVED, RemovedSessions, read_removed
from lockstep.verify.replay import Replay
from lockstep.verify.report import (
    MEANING,
    FollowerProof,
    Invariant,
    InvariantResult,
    InvariantStatus,
    LossSummary,
    LostInBatch,
    ProvenRange,
    VerifyReport,
    ViolationKind,
    ViolationPlace,
    Violations,
    make_loss_summary,
)
from lockstep.verify.row_replay import ReplayedRows, RowReplay, find_reason
from lockstep.verify.rows import RowComparison, RowCursor, TableRows
from lockstep.verify.side_tables import IN_LATE, ExpectedSideRows, SideTableCheck
from lockstep.verify.state import RewindFloor, StoredState
from lockstep.verify.stored_tables import StoredTables
from lockstep.verify.topic_ends import check_topic_ends, describe_end


class ProofTotals(msgspec.Struct):
    """Totals over all partitions of a proof.

    Attributes:
        messages: Messages read again.
        counts: Messages by outcome.
        holes: Offsets without a message.
        lost: Offsets that an operator gave up.
        rows: Rows compared with the fold.
        table_rows: Rows of the table.
        states: Session states compared.
        cleaned: Ledger rows before the rewind floor whose state was deleted since.
        floor: The rewind floor at the end.
        left: Ledger rows of a promotion whose state stayed with the shadow.
        quarantined: Quarantine rows compared.
        ranges: Ledger rows.
        scopes: The proven extent of each partition.
        replayed: Current rows compared with the newest states.
        replayed_batches: Batches of partitions after which the rows of the fold were replayed to its states.
        losses: States that were lost.
        blocked: Why something that Kafka retains could not be proven.
    """

    messages: int = 0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    holes: int = 0
    lost: int = 0
    rows: int = 0
    table_rows: int = 0
    states: int = 0
    cleaned: int = 0
    floor: int = 0
    left: int = 0
    quarantined: int = 0
    ranges: int = 0
    scopes: list[ProvenRange] = msgspec.field(default_factory=list)
    replayed: ReplayedRows = msgspec.field(default_factory=ReplayedRows)
    replayed_batches: int = 0
    losses: list[LostInBatch] = msgspec.field(default_factory=list)
    blocked: list[str] = msgspec.field(default_factory=list)

    def add(self, chain: LedgerChain, proof: PartitionProof) -> None:
        """Add the results of one partition."""
        self.counts.update(proof.totals)
        self.holes += len(proof.gaps)
        self.lost += proof.lost
        self.rows += proof.compared_rows
        self.states += proof.compared_states
        self.cleaned += proof.cleaned_states
        self.left += proof.left_states
        self.quarantined += proof.compared_quarantined
        self.ranges += len(chain.ranges)
        self.replayed_batches += proof.replayed_batches
        if proof.ended:
            self.blocked.append(f"{chain.place.topic}/{chain.place.partition}: {proof.ended}")


def make_summary(
    stream: str, stored: StoredTables, work: ProofTotals, violations: Violations, cpu_seconds: float
) -> VerifyReport:
    """The report."""
    # Each reason once, in the order in which they were met.
    blocked = list(dict.fromkeys(work.blocked))
    if (
        not blocked
        and not work.messages
        and any(ranges.rows.read_numbers("messages").any() for ranges in stored.ledger.values())
    ):
        blocked.append("no message could be read again")
    invariants = list[InvariantResult]()
    for invariant in Invariant:
        checked = _describe_checked(invariant, stored, work)
        invariants.append(_judge_invariant(invariant, checked, violations, work, blocked=bool(blocked)))
    status = _find_worst({result.status for result in invariants})
    losses = make_loss_summary(work.losses)
    if status is InvariantStatus.PROVEN and losses.open_sessions:
        status = InvariantStatus.LOST
    return VerifyReport(
        stream=stream,
        status=status,
        version=stored.version,
        generation=stored.head.generation,
        batch=stored.head.batch,
        messages=work.messages,
        invariants=tuple(invariants),
        counts={**work.counts, "holes": work.holes, "accepted_loss": work.lost},
        violation_count=violations.counts.total(),
        violations=tuple(violations.listed),
        scopes=tuple(sorted(_list_scopes(work), key=lambda scope: (scope.topic, scope.partition, scope.topic_id))),
        notes=(*stored.notes, *_find_absent_states(stored.head, work), *blocked),
        cpu_seconds=round(cpu_seconds, 3),
        next_step=_next_step(stream, status, violations, losses),
        losses=losses,
    )


def _find_worst(statuses: AbstractSet[InvariantStatus]) -> InvariantStatus:
    for status in (InvariantStatus.VIOLATED, InvariantStatus.NOT_PROVEN):
        if status in statuses:
            return status
    return InvariantStatus.PROVEN


def _list_scopes(work: ProofTotals) -> Iterator[ProvenRange]:
    """The proven extent of each partition, with the limit of its replay."""
    for scope in work.scopes:
        yield msgspec.structs.replace(
            scope, replay=work.replayed.limits.get(TopicIdPartition(scope.topic_id, scope.partition), "")
        )


def _find_absent_states(head: Head, work: ProofTotals) -> Iterator[str]:
    """Why the states of some ledger rows were not compared; their sessions were, with a later row."""
    if work.cleaned:
        yield f"states of {work.cleaned} ledger rows before the rewind floor, batch {work.floor}, were deleted since"
    if work.left and head.promotion is not None:
        batches = f"batches {head.promotion.first + 1} to {head.promotion.batch - 1}"
        shadow = f"shadow {head.promotion.shadow}, promoted since"
        yield f"states of {work.left} ledger rows of {batches} stayed with {shadow}"


def _judge_invariant(
    invariant: Invariant, checked: str, violations: Violations, work: ProofTotals, *, blocked: bool
) -> InvariantResult:
    count = violations.of(invariant)
    status = InvariantStatus.PROVEN
    if count:
        status = InvariantStatus.VIOLATED
    elif blocked and invariant in {Invariant.ACCOUNTED, Invariant.FOLD}:  # they need Kafka
        status = InvariantStatus.NOT_PROVEN
    elif invariant is Invariant.REPLAY and not work.replayed.is_claimed:
        status = InvariantStatus.NOT_CLAIMED
    return InvariantResult(invariant, MEANING[invariant], status, checked, count)


def _describe_checked(invariant: Invariant, stored: StoredTables, work: ProofTotals) -> str:
    counts = work.counts
    if invariant is Invariant.ACCOUNTED:
        named = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in _WITHOUT_ROWS)
        if counts["late"] or counts["buffered"]:
            named += f", {counts['late']} late, {counts['buffered'] - counts['released']} buffered"
        lost = f", {work.lost} accepted as lost" if work.lost else ""
        return f"{work.messages} messages: {counts['with_rows']} with rows, {named}; {work.holes} holes{lost}"
    if invariant is Invariant.ORDER:
        return f"{work.table_rows} rows in {len(stored.data_files)} files"
    if invariant is Invariant.FOLD:
        return (
            f"{work.rows} rows, {work.states} session states, {work.ranges} ledger rows, {work.quarantined} quarantined"
        )
    if invariant is Invariant.REPLAY:
        if not work.replayed.is_claimed:
            return work.replayed.describe()
        return f"{work.replayed.describe()}, and after {work.replayed_batches} batches"
    quarantined = sum(map(len, stored.quarantine.values()))
    return f"{stored.checked} side files: {stored.ledger_rows} ledger rows, {quarantined} quarantine rows"


_WITHOUT_ROWS = ("accepted_without_row", "skipped", "dropped", "quarantined")


def _next_step(stream: str, status: InvariantStatus, violations: Violations, losses: LossSummary) -> str:
    if violations.counts.keys() == {ViolationKind.REPLAY_DIFFERS}:
        return (
            "rows and states are the fold of the log, as far as it was read again: the fold itself emits rows that do "
            "not replay; docs/verify.md names the hooks to check"
        )
    if status is InvariantStatus.VIOLATED:
        return f"keep all as it is; docs/verify.md explains each kind; lockstep repair {stream} checks the files"
    if status is InvariantStatus.NOT_PROVEN:
        return "see the notes: the missing parts were not compared, which is neither proof nor violation"
    if status is InvariantStatus.LOST:
        step = f"lockstep losses {stream} lists them; to accept them: --accept {losses.last_batch} --why '...'"
        return f"find out why the states were lost; {step}"
    return f"nothing to do; lockstep status {stream} shows its state"


def check_without_kafka(
    ranges: Iterable[LedgerRange],
    cursor: RowCursor,
    aside: SideTableCheck,
    violations: Violations,
    *,
    dropped_up_to: int = 0,
    removed: RemovedSessions = NONE_REMOVED,
) -> None:
    """Compare the ledger's counts of each range with its rows in the table, the quarantine and the late table.

    Rows of timers at the end of a range have the first offset of the next one. Batches up to `dropped_up_to` have
    no rows: retention dropped them. Erased rows count as if they were there.
    """
    ahead = 0
    for row in ranges:
        stored_rows = sum(batch.num_rows for batch in cursor.before(row.until))
        stored_rows += removed.take_count(row.until, dropped_up_to)
        if row.batch <= dropped_up_to:
            rows = stored_rows + row.rows
            ahead = 0
        else:
            # Rows of timers are at the end of the range, so the cursor reads them with the range after it.
            rows = stored_rows - ahead + row.rows_emitted
            ahead = row.rows_emitted
        compared = {
            "rows": (rows, "the table"),
            "quarantined": (aside.quarantine.count(row.batch), "the quarantine"),
            "late": (aside.late.count(row.batch), "the late table"),
        }
        for name, (stored, where) in compared.items():
            if stored is not None and stored != getattr(row, name):
                expected = f"{stored} {name} in batch {row.batch}, as {where} has"
                violations.add(ViolationKind.COUNT_DIFFERS, row.place, row.start, expected, getattr(row, name))


def check_end(
    chain: LedgerChain,
    cursor: RowCursor,
    aside: SideTableCheck,
    violations: Violations,
    *,
    dropped_up_to: int = 0,
    removed: RemovedSessions = NONE_REMOVED,
) -> None:
    """Check the rows behind the last range of a partition: only timers, and batches without a range, emit them.

    For a partition whose counts alone are compared: the cursor is behind its last range.
    """
    last = chain.ranges[-1]
    rows = sum(batch.num_rows for batch in cursor.before(last.until + 1)) + removed.count_at(last.until, last.batch)
    emitted = 0 if last.batch <= dropped_up_to else last.rows_emitted
    if rows != emitted:
        expected = f"{rows} rows emitted at offset {last.until} by batch {last.batch}, as the table has"
        violations.add(ViolationKind.COUNT_DIFFERS, chain.place, last.until, expected, emitted)
    for batch in cursor.before(2**63 - 1):
        offset = batch["_emit_offset"][0].as_py()
        expected = f"no rows from {chain.until} on"
        violations.add(ViolationKind.ROW_UNCLAIMED, chain.place, offset, expected, f"{batch.num_rows} rows")
    batches = set(chain.ranges.rows.read_numbers("batch").tolist())
    tables = ((aside.quarantine, ViolationKind.QUARANTINE_EXTRA), (aside.late, ViolationKind.LATE_EXTRA))
    for table, kind in tables:
        for offset in table.outside(range(chain.until)):
            table.unread(offset)
        for batch_number in sorted(table.find_batches() - batches):
            expected = f"no rows of batch {batch_number}, which read nothing"
            violations.add(kind, chain.place, None, expected, f"{table.count(batch_number)} rows")


def check_places(
    chains: Mapping[TopicIdPartition, LedgerChain],
    places: Mapping[TopicIdPartition, ViolationPlace],
    head: Head,
    violations: Violations,
) -> None:
    """Compare the topics of the ledger with those of the rows; find partitions that a start would not find."""
    for key, chain in chains.items():
        named = places.get(key, chain.place).topic
        if named != chain.place.topic:
            expected = f"topic {named}, as the table has"
            violations.add(ViolationKind.TOPIC_DIFFERS, chain.place, None, expected, chain.place.topic)
        last = chain.ranges[-1]
        # A start reads the ledger from the newest batch on that has a row of each partition.
        full = head.full_ledger_batch
        if last.batch < full and not last.is_forgotten:
            expected = f"a row in batch {full}, which has all positions, or later"
            violations.add(ViolationKind.POSITION_LOST, chain.place, last.until, expected, f"batch {last.batch}")


def list_losses(chain: LedgerChain, head: Head) -> Iterator[LostInBatch]:
    """The losses of a partition, each as accepted or open by the acceptances in the head."""
    for row in chain.losing:
        is_open = row.batch > head.lost.accepted_batch or 0 < head.lost.first_batch <= row.batch
        for loss in row.losses:
            yield LostInBatch(
                batch=row.batch,
                topic=row.topic,
                partition=row.partition,
                offset=loss.offset,
                cause=loss.cause,
                sessions=loss.sessions,
                messages=loss.messages,
                is_accepted=loss.is_accepted or not is_open,
                detail=loss.detail,
            )


Gaps = list[tuple[int, int, str]]
"""(start, until, cause)."""


def check_causes(kafka: KafkaTopicLog, found: Sequence[tuple[ViolationPlace, Gaps]], violations: Violations) -> None:
    """A `read_uncommitted` consumer sees messages of aborted transactions, and nothing at a control record."""
    asked = [(place, gaps) for place, gaps in found if gaps]
    seen: list[set[int]] = [set() for _ in asked]
    wanted = [WantedRange(place.topic, place.partition, gaps[0][0], gaps[-1][1]) for place, gaps in asked]
    for piece in kafka.read(wanted, committed=False):
        seen[piece.index].update(map(find_offset, piece.messages))
    for (place, gaps), offsets in zip(asked, seen, strict=True):
        _compare(place, gaps, offsets, violations)


def _compare(place: ViolationPlace, gaps: Gaps, seen: set[int], violations: Violations) -> None:
    for start, until, cause in gaps:
        for offset in range(start, until):
            # A control record has an offset and no message, in any isolation.
            aborted = offset in seen
            if aborted is not (cause == "aborted"):
                expected = "aborted" if aborted else "marker, or unproven"
                violations.add(ViolationKind.HOLE_CAUSE, place, offset, expected, cause)


def verify_stream(
    stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings, registry: Registry | None = None
) -> VerifyReport:
    """Prove a stream, up to the current head of its table.

    1. Read the tables; compare the side tables with the files that commits name (I8). Of a shadow, or of an imported
       savepoint: compare the rows taken over with its digest, and those of a shadow with the shadowed stream.
    2. Join the ledger's ranges of each partition (half of I1).
    3. Sort the rows by partition; check their order (I2).
    4. Ask Kafka for the retained offsets; from there on read again, fold, and compare (I1, I3).
    5. Ask Kafka why offsets hold no message (the rest of I1).
    6. Compare the newest row of each key with the newest state (I9).
    7. Compare the positions of the followers, read before the tables, with log and lineage.

    Args:
        stream: The declaration; it must be the one that wrote the table.
        folders: The folders of its tables.
        kafka: The cluster.
        registry: The installation's schema registry, if the decoder needs it.

    Raises:
        LockstepError: Something could not be read, or rows were replaced meanwhile: nothing is proven, and nothing
            is violated.
    """
    if not delta_log.has_log(folders.table):
        require_root(folders.root)
        raise LockstepError(f"stream {stream.name} has no table yet", next_step=f"lockstep run {stream.name}")
    base = OutputLog(folders.table).base()
    code = describe_code(stream, base.head)  # before a fold can change the state of the transform
    try:
        report = _prove_stream(stream, folders, kafka, registry)
    except (LockstepError, FileNotFoundError):
        _refuse_replaced(folders, base)  # a file that was replaced meanwhile is a reason to repeat, not damage
        raise
    if report.status is not InvariantStatus.VIOLATED:
        return report
    _refuse_replaced(folders, base)
    return msgspec.structs.replace(report, next_step=code + report.next_step)


def _refuse_replaced(folders: StreamFolders, before: Base) -> None:
    """Take no file for missing that a commit since has replaced: an erasure deletes files that a reader may need."""
    newest = OutputLog(folders.table).base().version
    version = delta_log.find_replaced_rows(folders.table, range(before.version + 1, newest + 1))
    if version is not None:
        problem = f"stream {folders.stream}: version {version} replaced rows while they were verified"
        raise LockstepError(problem, next_step=f"lockstep verify {folders.stream} again; nothing is violated by it")


def _prove_stream(
    stream: AnyStream, folders: StreamFolders, kafka: KafkaSettings, registry: Registry | None
) -> VerifyReport:
    began = time.process_time()
    violations = Violations()
    positions = read_follower_positions(folders.root)
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as scratch, TableRows(Path(scratch)) as rows:
        stored = read_stored(folders, violations, Path(scratch))  # 1
        for check in load_parts("proofs"):
            check(folders, stored, violations)
        chains = make_chains(stored.ledger, violations)  # 2
        rows.load(folders.table, stored.data_files, stored.statistics, violations)
        rows.check_order(violations)  # 3
        rows.check_hours(chains, stored.stamps, violations)
        check_places(chains, rows.places, stored.head, violations)
        proving = _Proving(stream, folders, stored, rows, violations, find_declaration(stream, registry))
        with _without_collector():
            proving.prove(chains, KafkaTopicLog(kafka))  # 4, 5
            proving.replay_rows(chains)  # 6
        followers = tuple(check_followers(positions, folders.table, stored.head, stored.version))  # 7
        for prove in load_parts("follower_proofs"):
            followers += tuple(prove(stream, folders, kafka))
        work = msgspec.structs.replace(proving.work, table_rows=rows.rows)
    report = make_summary(stream.name, stored, work, violations, time.process_time() - began)
    return add_followers(report, followers)


def add_followers(report: VerifyReport, followers: tuple[FollowerProof, ...]) -> VerifyReport:
    """Add the followers of a stream to its report: a violated claim makes the whole violated."""
    report = msgspec.structs.replace(report, followers=followers)
    false = [each for each in followers if each.status is InvariantStatus.VIOLATED]
    if not false or report.status is InvariantStatus.VIOLATED:
        return report
    step = f"the table keeps its invariants; {false[0].kind} {false[0].name} is not of this table: "
    return msgspec.structs.replace(report, status=InvariantStatus.VIOLATED, next_step=step + false[0].next_step)


def describe_code(stream: AnyStream, head: Head) -> str:
    """Which batches are of other code than that of the proof: a difference there need be no damage."""
    if head.code is None:
        return ""
    try:
        digest = digest_code(stream)
    except OSError:  # it is in no files
        return ""
    if digest != head.code.digest:
        return (
            "the code here is not that of the last run, so rows may differ because of it; prove with that code. Else "
        )
    if head.code.first_batch == FIRST_BATCH:
        return ""
    since = head.code.first_batch
    return f"today's code wrote from batch {since} on: rows of batches before it may differ because of it. Else "


@contextmanager
def _without_collector() -> Iterator[None]:
    """The fold makes no cycles, and the collector would traverse all its states again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Proving:
    """The proof of all partitions.

    Attributes:
        work: The compared data.
    """

    def __init__(
        self,
        stream: AnyStream,
        folders: StreamFolders,
        stored: StoredTables,
        rows: TableRows,
        violations: Violations,
        functions: Declared,
    ) -> None:
        self._folders = folders
        self._rows = rows
        self._violations = violations
        self._declared = functions
        self._integrity = stream.integrity
        self._absent = stored.absent
        self._head = stored.head
        self._class = format_integrity(stream.integrity)
        self._reason = find_reason(stream.transform, functions.replay_key)
        self._quarantine = stored.quarantine
        self._late = stored.late
        self._stored = stored
        self._homes: dict[tuple[str, str], int] = {}
        self._compacted: frozenset[str] = frozenset()
        self._lookups = LookupVersions(stream.lookups, folders.root)
        self._table_id = stored.head.table_id
        self._floor = RewindFloor(folders.table, stored.head)
        self._archive = StoredArchive(folders, stored.head)
        self._inherited = stored.head.inherited_up_to
        self._origin = stored.head.taken_over
        self._dropped = _find_last_dropped(stored.head)
        # A timer or a buffer depends on which message was refused; else the fold finds out again.
        is_timed = functions.deadline is not None or bool(stream.integrity.buffer)
        self._unknown_up_to = stored.retention.batch if is_timed else stored.retention.unknown_up_to
        self._row_budget = RowBudget()
        self.work = ProofTotals()
        try:
            self._rules: GateRules | None = make_rules(stream.integrity, ReplayWatermark())
        except NotProvable as reason:
            self._rules = None
            self.work.blocked.append(reason.reason)

    def prove(self, found: Mapping[TopicIdPartition, LedgerChain], kafka: KafkaTopicLog) -> None:
        """Prove each partition as far as possible."""
        for chain in found.values():
            self.work.losses += list_losses(chain, self._head)
        self._report_unclaimed(found)
        check_topic_ends(found.values(), self._head.policies, self._violations)
        topics = kafka.find_topics({chain.place.topic for chain in found.values()})
        ids = {name: topic.topic_id for name, topic in topics.items()}
        alive = [chain for chain in found.values() if ids.get(chain.place.topic) == chain.place.topic_id]
        alive = [chain for chain in alive if self._has_partition(chain, topics[chain.place.topic].partitions)]
        self._compacted = kafka.find_compacted({chain.place.topic for chain in alive})
        ranges = kafka.read_ranges(TopicNamePartition(chain.place.topic, chain.place.partition) for chain in alive)
        readable = [(c, ranges[TopicNamePartition(c.place.topic, c.place.partition)]) for c in alive]
        for chain in found.values():
            if ids.get(chain.place.topic) == chain.place.topic_id:
                continue
            gone = "re-created" if chain.place.topic in ids else "gone"
            # The archive may have what Kafka has deleted with the topic.
            if self._archive.find_first(chain.key, chain.until) < chain.until:
                readable.append((chain, BufferedRange(chain.until, chain.until)))
                continue
            why = f"the topic is {gone}: order and counts only"
            self._check_without_fold(chain, _join_notes(why, describe_end(chain)))
        # In groups: each partition that is read has states, rows and buffers in memory.
        for at in range(0, len(readable), TOGETHER_MAX):
            self._floor.refresh()
            self._prove_group(readable[at : at + TOGETHER_MAX], kafka)
        self.work.floor = self._floor.batch

    def replay_rows(self, found: Mapping[TopicIdPartition, LedgerChain]) -> None:
        """Compare the current rows of each partition with its newest state, if the stream claims that they replay."""
        declared = self._declared
        key = self._declared.replay_key
        if key is None:
            self.work.replayed.reason = self._reason
            return
        replay = RowReplay(declared, key, self._folders, self._stored, self._rows, self._floor, self._violations)
        for chain in found.values():
            replay.compare(chain)
        self.work.replayed = replay.found

    def _has_partition(self, chain: LedgerChain, partitions: int) -> bool:
        """Whether the topic has the partition; Kafka never takes one away, so otherwise the ledger is damaged."""
        if 0 <= chain.place.partition < partitions:
            return True
        expected = f"partitions 0 to {partitions - 1}"
        rows = f"{len(chain.ranges)} rows of the ledger"
        self._violations.add(ViolationKind.PARTITION_UNKNOWN, chain.place, chain.start, expected, rows)
        self._check_without_fold(chain, "the topic has no such partition: order and counts only")
        return False

    def _prove_group(self, group: Iterable[tuple[LedgerChain, BufferedRange]], kafka: KafkaTopicLog) -> None:
        self._row_budget = RowBudget()
        in_kafka = dict[TopicIdPartition, int]()
        extended = list[tuple[LedgerChain, BufferedRange]]()
        for chain, held in group:
            key = chain.key
            in_kafka[key] = held.first
            extended.append((chain, BufferedRange(self._archive.find_first(key, held.first), held.end)))
        proofs = list(self._opened(extended))
        for chain, _, proof in proofs:
            self._read_archive(chain, proof, in_kafka[chain.key])
        wanted = list[WantedRange]()
        for chain, held, proof in proofs:
            start = max(proof.start, in_kafka[chain.key])
            wanted.append(WantedRange(chain.place.topic, chain.place.partition, start, _end(chain, held)))
        read_before = self.work.messages
        total = sum(max(0, partition.until - partition.start) for partition in wanted)
        for piece in kafka.read(wanted):
            self.work.messages += len(piece.messages)
            report_progress(f"verifying {len(proofs)} partitions", self.work.messages - read_before, total)
            proofs[piece.index][2].take(piece.messages, piece.reached)
        for chain, end, proof in proofs:
            proof.finish(_end(chain, end))
            self.work.add(chain, proof)
            self._check_homes(chain.place, proof)
        shown = list[tuple[ViolationPlace, Gaps]]()
        for chain, _, proof in proofs:
            first = in_kafka[chain.key]
            shown.append((chain.place, [gap for gap in proof.lasting_gaps if gap[0] >= first]))
        # A second, uncommitted reading: it sees the messages of aborted transactions.
        check_causes(kafka, shown, self._violations)

    def _read_archive(self, chain: LedgerChain, proof: PartitionProof, until: int) -> None:
        """Fold what Kafka no longer has."""
        if proof.start >= until:
            return
        for piece in self._archive.read(chain.key, proof.start, min(until, chain.until)):
            self.work.messages += len(piece.messages)
            proof.take(cast("Sequence[Message]", piece.messages), piece.reached)

    def _check_homes(self, place: ViolationPlace, proof: PartitionProof) -> None:
        """A session that continues in two partitions has no order, though its class promised one."""
        if self._rules is None or not self._rules.of_one_partition:
            return
        for session in proof.living:
            home = self._homes.setdefault((place.topic_id, session), place.partition)
            if home != place.partition:
                kind = ViolationKind.SESSION_IN_TWO_PARTITIONS
                both = sorted((home, place.partition))
                self._violations.add(kind, place, None, f"session {session!r} in one partition", f"partitions {both}")

    def _opened(
        self, group: Iterable[tuple[LedgerChain, BufferedRange]]
    ) -> Iterator[tuple[LedgerChain, BufferedRange, PartitionProof]]:
        """Start the proof of partitions; of those that cannot be folded again, check what is possible."""
        for chain, held in group:
            first, gone = self._find_first_foldable(chain, held)
            self._check_start(chain, held)
            if self._rules is None:
                self._check_without_fold(chain, self.work.blocked[0])
            elif first == len(chain.ranges):
                why = f"Kafka has nothing before offset {held.first}, or no state from before it is kept"
                self._check_without_fold(chain, f"{gone or why}: order and counts only")
            else:
                opened = self._open(chain, first)
                if opened is not None:
                    scope = self._scope(chain, first, held)
                    self._add_scope(chain, msgspec.structs.replace(scope, note=gone or scope.note))
                    yield chain, held, opened

    def _find_first_foldable(self, chain: LedgerChain, held: BufferedRange) -> tuple[int, str]:
        """Index of the first range that can be folded again, and the reason if a lookup or a policy limits it."""
        provable = find_first_provable(chain.ranges, held.first)
        reproducible, gone = self._lookups.find_first_reproducible(chain.ranges)
        judged, other = find_first_judged(chain.ranges, self._head.policies, self._class)
        if judged > reproducible:
            reproducible = judged
            gone = other
        if reproducible <= provable:
            gone = ""  # of what Kafka has no more nothing can be proven anyway
        if gone:
            self.work.blocked.append(f"{chain.place.topic}/{chain.place.partition}: {gone}")
        repeatable = find_first_repeatable(chain.ranges, self._unknown_up_to)
        if repeatable > max(provable, reproducible):
            batch = chain.ranges[repeatable - 1].batch
            gone = f"the fold needs quarantined messages up to batch {batch}: order and counts only up to there"
        possible = max(provable, reproducible, repeatable)
        first = find_first_with_state(chain.ranges, possible, self._floor.batch, inherited_up_to=self._inherited)
        return first, gone

    def _open(self, chain: LedgerChain, first: int) -> PartitionProof | None:
        """The proof of a partition from one of its ranges on, with the state stored before it."""
        parts = self._parts(chain, first)
        # Batches of another class have left memories in its form.
        if any(each.integrity not in {"", self._class} for each in self._head.policies):
            parts.stored.other = OtherClass(self._integrity, suspends=lambda: parts.folding.suspends)
        if first > 0:
            previous = chain.ranges[first - 1]
            floor = self._floor.batch
            try:
                parts.stored.begin(previous, parts.folding)
                parts.replay.begin(parts.folding.sessions)
            except NotReproducible as other:
                self.work.blocked.append(f"{chain.place.topic}/{chain.place.partition}: {other}")
                self._check_without_fold(chain, f"{other}: order and counts only")
                return None
            except StateError as error:
                reason = f"{chain.place.topic}/{chain.place.partition}: no state to start with: {error.problem}"
                if self._floor.refresh() == floor:  # else it may be deleted: another state is in force there
                    self._violations.add(
                        ViolationKind.STATE_DAMAGED, chain.place, previous.until, "a stored state", error.problem
                    )
                self.work.blocked.append(reason)
                self._check_without_fold(chain, "not provable: the state to start with cannot be read")
                return None
            self._check_counts(chain, first, parts.cursor, parts.aside)
            if previous.batch > self._dropped:
                parts.cursor.skip(previous.rows_emitted - parts.removed.count_at(previous.until, previous.batch))
        return PartitionProof(parts, first, self._violations)

    def _parts(self, chain: LedgerChain, first: int) -> PartitionInputs:
        removed = self._removed(chain)
        key = chain.key
        moment = ReplayWatermark()
        rules = RulesInForce(self._integrity, self._head.policies, moment, joined=chain.is_joined)
        aside = self._aside(chain)
        folding = Replay(self._declared, rules.find(chain.ranges[first].batch), moment, chain.place, aside)
        folding.removed = removed
        dropped_before = None
        if self._dropped:
            dropped_before = chain.end_of(self._dropped)
        return PartitionInputs(
            declared=self._declared,
            chain=chain,
            rules=rules,
            folding=folding,
            aside=aside,
            cursor=self._rows.cursor(key),
            rows=RowComparison(
                chain.place,
                self._violations,
                {name: chain.end_of(batch) for name, batch in self._absent.items()},
                dropped_before=dropped_before,
                removed=removed,
            ),
            removed=removed,
            lookups=RangeLookups(self._lookups),
            is_compacted=chain.place.topic in self._compacted,
            has_buffer=bool(self._integrity.buffer),
            stored=StoredState(self._folders.state, self._declared, self._violations, self._head, self._floor),
            replay=BatchReplay(self._declared, self._row_budget, self._violations),
        )

    def _aside(self, chain: LedgerChain) -> SideTableCheck:
        key = chain.key
        removed = self._removed(chain)
        dropped = self._stored.retention.batch
        quarantine = ExpectedSideRows(
            chain.place, self._quarantine.get(key), self._violations, removed=removed, dropped_up_to=dropped
        )
        late = ExpectedSideRows(
            chain.place, self._late.get(key), self._violations, IN_LATE, removed, dropped_up_to=dropped
        )
        return SideTableCheck(quarantine, late, self._violations)

    def _check_without_fold(self, chain: LedgerChain, why: str) -> None:
        """Record a partition whose messages are not folded again."""
        cursor = self._rows.cursor(chain.key)
        aside = self._aside(chain)
        self._check_counts(chain, len(chain.ranges), cursor, aside)
        removed = self._removed(chain)
        check_end(chain, cursor, aside, self._violations, dropped_up_to=self._dropped, removed=removed)
        self._add_scope(chain, _scope_of(chain, None, why))

    def _scope(self, chain: LedgerChain, first: int, held: BufferedRange) -> ProvenRange:
        return _scope(chain, first, held, self._origin, self._inherited)

    def _add_scope(self, chain: LedgerChain, scope: ProvenRange) -> None:
        """Record the proven range of a partition; of dropped rows only that they are gone."""
        if chain.ranges[0].batch <= self._dropped and self._origin is None:
            dropped = f"rows of batches up to {self._dropped} were dropped by retention"
            scope = msgspec.structs.replace(scope, note=_join_notes(dropped, scope.note))
        if dropped_messages := _describe_dropped(chain, self._stored.retention.batch):
            scope = msgspec.structs.replace(scope, note=_join_notes(dropped_messages, scope.note))
        if left_out := self._removed(chain).describe():
            scope = msgspec.structs.replace(scope, note=_join_notes(scope.note, left_out))
        self.work.scopes.append(scope)

    def _check_counts(self, chain: LedgerChain, ranges: int, cursor: RowCursor, aside: SideTableCheck) -> None:
        """Compare the first ranges of a partition with the stored rows."""
        first = islice(chain.ranges, ranges)
        removed = self._removed(chain)
        check_without_kafka(first, cursor, aside, self._violations, dropped_up_to=self._dropped, removed=removed)

    def _removed(self, chain: LedgerChain) -> RemovedSessions:
        return read_removed(self._table_id, chain)

    def _check_start(self, chain: LedgerChain, held: BufferedRange) -> None:
        """Report messages before the first wanted offset: they were never read."""
        joined_here = chain.is_joined and chain.joined_at == {chain.start}
        if self._origin is not None and chain.ranges[0].batch == FIRST_BATCH:
            joined_here = True  # the inherited position, which is proven by its digest
        if held.first < chain.start and not joined_here and not chain.ranges[0].is_loss:
            unread = f"messages from {held.first} on, the first batch starts at {chain.start}"
            self._violations.add(ViolationKind.NEVER_READ, chain.place, held.first, "all from the first offset", unread)
        for row in chain.expired:
            if held.first < row.read_from and row.read_from > row.start:  # the start of a log never moves back
                claimed = f"expired before offset {row.read_from}, says batch {row.batch}"
                expected = f"messages from {max(held.first, row.start)} on, which Kafka still has"
                self._violations.add(ViolationKind.NEVER_READ, chain.place, row.start, expected, claimed)

    def _report_unclaimed(self, found: Mapping[TopicIdPartition, LedgerChain]) -> None:
        """Rows and quarantine of partitions that are not in the ledger."""
        for key, place in self._rows.places.items():
            if key not in found:
                first = self._rows.slices[key][0].first[0]
                rows = sum(each.rows for each in self._rows.slices[key])
                expected = f"no rows of topic id {place.topic_id}"
                self._violations.add(ViolationKind.ROW_UNCLAIMED, place, first, expected, f"{rows} rows")
        tables = ((self._quarantine, ViolationKind.QUARANTINE_EXTRA), (self._late, ViolationKind.LATE_EXTRA))
        for table, kind in tables:
            for key in table.keys() - found.keys():
                found_rows = f"{len(table[key])} rows of {key[0]}/{key[1]}"
                self._violations.add(kind, None, None, "partitions of the ledger", found_rows)


def _find_last_dropped(head: Head) -> int:
    """The last batch whose rows the table need not have: inherited from another table, or dropped by retention."""
    taken_over = FIRST_BATCH if head.taken_over is not None else 0
    if head.retention is None:
        return taken_over
    return max(taken_over, head.retention.batch)


def _join_notes(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _describe_dropped(chain: LedgerChain, dropped_up_to: int) -> str:
    """How many messages retention has dropped from quarantine and late table, as the ledger counts them."""
    rows = chain.ranges.rows
    is_dropped = rows.read_numbers("batch") <= dropped_up_to
    quarantined, late = (int(rows.read_numbers(name)[is_dropped].sum()) for name in ("quarantined", "late"))
    if not quarantined and not late:
        return ""
    counted = f"{quarantined} quarantined and {late} late messages of batches up to {dropped_up_to}"
    return f"{counted} were dropped by retention, as the ledger counts them"


def _end(chain: LedgerChain, held: BufferedRange) -> int:
    """The end of the second reading: records that a log lost at its end never arrive."""
    return min(chain.until, held.end)


def _scope(
    chain: LedgerChain, first: int, held: BufferedRange, origin: Origin | Imported | None, inherited_up_to: int
) -> ProvenRange:
    row = chain.ranges[first]
    notes = []
    is_inherited = first > 0 and chain.ranges[first - 1].batch <= inherited_up_to
    if is_inherited and origin is not None:
        notes.append(f"state before it taken from batch {origin.batch} of {origin.stream}")
    elif is_inherited:
        notes.append(f"from batch {row.batch} on of a promoted shadow; rows before it checked for order and counts")
    elif first > 0:
        state = f"state before it taken from batch {chain.ranges[first - 1].batch}"
        notes.append(f"Kafka keeps nothing before {held.first}; {state}, rows before it checked for order and counts")
    if chain.is_joined:
        notes.append(f"reading started at offset {chain.ranges[0].joined_at}, as declared (Topics.start)")
    if held.end < chain.until:
        notes.append(f"Kafka's log ends at {held.end}: offsets from there on are not proven")
    if chain.lossy:
        notes.append("; ".join(map(_describe_loss, chain.lossy)))
    return _scope_of(chain, row.read_from, "; ".join(notes))


def _describe_loss(row: LedgerRange) -> str:
    decisions = ", ".join(f"{each.why} ({each.who})" for each in row.accepted if each.kind in LOSSES)
    return f"accepted loss: offsets {row.start} to {row.until - 1}: {decisions}"


def _scope_of(chain: LedgerChain, proven_from: int | None, note: str) -> ProvenRange:
    place = chain.place
    return ProvenRange(
        topic=place.topic,
        topic_id=place.topic_id,
        partition=place.partition,
        proven_from=proven_from,
        until=chain.until,
        note=note,
    )
