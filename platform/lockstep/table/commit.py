"""The commit protocol: compare-and-swap, and the requirements of each kind of commit.

The order of the steps in `commit` is the protocol; each was found necessary by racing and killing writers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from lockstep.errors import Fenced, TableError
from lockstep.model.code_version import CodeVersion
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.storage import find_storage
from lockstep.table import commit_kinds, delta_log, transactions
from lockstep.table.commit_kinds import CommitKind
from lockstep.table.delta_log import AddAction, CreateEntry, NextEntry, RemoveAction
from lockstep.table.foreign_commits import refuse_foreign_since
from lockstep.table.head import (
    Desired,
    FoldCode,
    HaltedTopic,
    Head,
    PolicyChange,
    Resumption,
    SideBatch,
    SideFile,
    ViolationPolicy,
)
from lockstep.table.log_tail import LogTail, make_unreadable
from lockstep.table.losses import NO_LOSSES, BatchLosses, accept_losses, add_losses
from lockstep.table.parquet import DataFile
from lockstep.table.schema_evolution import SchemaChange, find_schema_changes
from lockstep.table.written_by import read_written_by

OLDEST_FILE_SECONDS = 36 * 3600
"""Half of the 3 days after which vacuum may delete a file that no version names. For files whose names do not contain
their batch: of those that do, clean-up deletes none that can be committed, however long their driver was suspended."""


class Base(msgspec.Struct, frozen=True):
    """The version that a commit builds on, and its head."""

    version: int
    head: Head


class RestoredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of a base from an earlier version: the files that a commit adds and removes to go back to it.

    Attributes:
        adds: Files that return, and the mark.
        removes: Files that are removed.
        table_metadata: The `metaData` action, if the columns differ.
    """

    adds: tuple[AddAction, ...]
    removes: tuple[RemoveAction, ...]
    table_metadata: Mapping[str, object] | None


NOTHING_RESTORED = RestoredFiles(adds=(), removes=(), table_metadata=None)


class Proposal(msgspec.Struct, frozen=True):
    """A proposed commit.

    Attributes:
        kind: The kind of commit.
        next_head: The head after it, recomputed for each base; checks the requirements of the kind on
            the base and raises if they do not hold. Pure.
        adds: Files to add.
        removes: Files to remove (compaction, retention and erasure only).
        restore: Finds what else to add and to remove on a base version (rewind and promotion only).
        batch: Batch number, for kinds that are batches.
        epoch: New epoch, for claims.
        metadata: Further metadata of the entry.
        alter: Changes the table in another way, as one commit with these properties (schema only).
        needs: Files outside the table's folder that the commit refers to, with the least size of each: side files and
            state files. If a driver was suspended for days between its tasks and its commit, they may be cleaned up.
    """

    kind: CommitKind
    next_head: Callable[[Base], Head]
    adds: tuple[DataFile, ...] = ()
    removes: tuple[RemoveAction, ...] = ()
    restore: Callable[[int], RestoredFiles] | None = None
    batch: int | None = None
    epoch: int | None = None
    metadata: Mapping[str, str] = {}
    alter: Callable[[DeltaTable, CommitProperties], None] | None = None
    needs: Mapping[Path, int] = {}


class Committed(msgspec.Struct, frozen=True):
    """A commit that is in the log."""

    version: int
    head: Head


class OutputLog:
    """The log of a stream's output table; one per thread that commits."""

    def __init__(self, table: Path, create: CreateEntry = delta_log.create_entry) -> None:
        """Find the newest version.

        Args:
            table: Folder of the table.
            create: Creates the file of an entry.

        Raises:
            TableNotFoundError: The table is missing.
        """
        self.folder = table
        self._create = create
        self._tail = LogTail(table)

    @cached_property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self._open().metadata().id)

    def find_schema_changes(self, wanted: pa.Schema, defaulted: frozenset[str]) -> SchemaChange:
        """The table's missing columns of a schema, as last read. Raises TableError as `find_schema_changes` does."""
        return find_schema_changes(self._open(), wanted, defaulted=defaulted)

    def _open(self) -> DeltaTable:
        return delta_log.open_delta_table(self.folder, version=self._tail.version)

    def base(self) -> Base:
        """The newest version and its head.

        Raises:
            ForeignCommit: A foreign entry follows our newest one.
            TableReplaced: The folder was moved, deleted or restored since the last read.
            TableError: Our newest entry cannot be read.
        """
        self._tail.refresh()
        version = self._tail.version
        entry = self._tail.entry
        if (ours := self._tail.find_number(transactions.VERSION)) < version:
            refuse_foreign_since(self.folder, ours, version)
            entry = delta_log.read_entry(self.folder, ours)
        if entry is None:
            raise make_unreadable(self.folder, version)
        if entry.head is None:
            raise _without_head(self.folder, version)
        return Base(version=version, head=entry.head)

    def commit(self, proposal: Proposal) -> Committed:
        """Commit a proposal at exactly the version after its base, or not at all.

        1. Refresh and read the head on this base, at every attempt.
        2. Check on the base the requirements of the kind, and that each named file exists.
        3. Append the entry. Lost to a harmless commit: again from 1. A conflicting commit fails in 2.

        Raises:
            Fenced: A newer writer has claimed the table.
            TableError: The base does not meet the requirements of the kind.
            CommitUnknown: It is unknown whether the commit landed.
            NotCommitted: The storage did not take it.
        """
        attempts: list[Committed] = []

        def next_entry() -> NextEntry:
            base = self.base()  # 1
            attempts.append(Committed(version=base.version + 1, head=proposal.next_head(base)))
            _check_files(self.folder, proposal.adds, proposal.needs)  # 2
            alter = None
            if proposal.alter is not None:
                alter = partial(proposal.alter, self._open())
            restored = NOTHING_RESTORED
            if proposal.restore is not None:
                restored = proposal.restore(base.version)
            return _make_entry(attempts[-1], proposal, restored, alter)

        written = delta_log.append_entry(self.folder, next_entry, create=self._create)  # 3
        if written is not None:
            self._tail.advance(written)
        return attempts[-1]


def _make_entry(
    committed: Committed,
    proposal: Proposal,
    restored: RestoredFiles,
    alter: Callable[[CommitProperties], None] | None,
) -> NextEntry:
    head = committed.head
    numbers = {transactions.VERSION: committed.version}
    if proposal.batch is not None:
        numbers[transactions.BATCH] = proposal.batch
    if proposal.epoch is not None:
        numbers[transactions.EPOCH] = proposal.epoch
    user = {"kind": proposal.kind.name, "batch": head.batch, "epoch": head.epoch}
    metadata = {delta_log.HEAD: head.encode(), "userMetadata": msgspec.json.encode(user).decode()}
    return NextEntry(
        version=committed.version,
        kind=proposal.kind,
        adds=[*(file.action() for file in proposal.adds), *restored.adds],
        removes=[*proposal.removes, *restored.removes],
        table_metadata=restored.table_metadata,
        alter=alter,
        transactions=numbers,
        metadata=metadata | dict(proposal.metadata),
    )


def _check_files(table: Path, adds: tuple[DataFile, ...], needs: Mapping[Path, int]) -> None:
    """Refuse a file that was deleted meanwhile (by a vacuum, by hand): readers would fail permanently."""
    statuses = find_storage(table).get_statuses([*(table / file.path for file in adds), *needs])
    for file, status in zip(adds, statuses, strict=False):
        if status is None:
            raise _bad_file(table / file.path, "is missing")
        if status.size != file.size:
            raise _bad_file(table / file.path, f"has {status.size} bytes, not {file.size}")
        # Files whose names contain their batch are not cleaned up while it can be committed.
        if read_written_by(file.path) is None and time.time() - status.modified_at > OLDEST_FILE_SECONDS:
            raise _bad_file(table / file.path, "is older than half the retention, a vacuum may delete it")
    for (path, size), status in zip(needs.items(), statuses[len(adds) :], strict=True):
        if status is None:
            raise _bad_file(path, "is missing")
        if status.size < size:  # the end of the last needed segment: a state file may have later ones
            raise _bad_file(path, f"has {status.size} bytes, fewer than {size}")


def _bad_file(path: Path, problem: str) -> TableError:
    return TableError(f"{path} {problem}; nothing was committed", next_step="start the stream again")


def _without_head(table: Path, version: int) -> TableError:
    path = delta_log.make_entry_path(table, version)
    return TableError(
        f"{path} carries no readable head of lockstep", next_step="restore the entry from a copy of the log"
    )


class Writer(msgspec.Struct, frozen=True):
    """The identity under which a run commits batches."""

    epoch: int
    generation: int


class HourClosed(TableError):
    """The batch's hour has been closed since it was planned: plan it again."""


class BatchCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A batch to commit.

    Attributes:
        number: Batch number; one more than the last.
        commit_hour: The hour fixed at planning.
        files: Data files, already synced.
        ledger: Its ledger file, already synced; None while it is not written, which is when nothing can be committed.
        quarantine: Its quarantine files, already synced.
        late: Its late-table files, already synced.
        archive: Its archive files, already synced.
        full_ledger_at: Time in seconds, if the ledger file contains all positions.
        findings: The evidence; if there is any, this commit is the halt.
        topic_findings: The evidence of violations that halt only their topics.
        resumed_topics: Ids of the halted topics that an operator has resumed.
        accepts_burst: An operator accepted a quarantine burst that is not over yet.
        needs: The side files, and the state files that the ledger file refers to, with the least size of each.
        resumption: The operator's resumption, if this batch is one.
        losses: States that the batch found to be lost.
    """

    number: int
    commit_hour: str
    files: tuple[DataFile, ...] = ()
    ledger: SideFile | None = None
    quarantine: tuple[SideFile, ...] = ()
    late: tuple[SideFile, ...] = ()
    archive: tuple[SideFile, ...] = ()
    full_ledger_at: float | None = None
    findings: tuple[Finding, ...] = ()
    topic_findings: tuple[Finding, ...] = ()
    resumed_topics: frozenset[str] = frozenset()
    accepts_burst: bool = False
    needs: Mapping[Path, int] = {}
    resumption: Resumption | None = None
    losses: BatchLosses = NO_LOSSES


class Deployed(msgspec.Struct, frozen=True):
    """The parts of a run's declaration that the head records.

    Attributes:
        code_digest: Digest of the code of its fold; empty leaves the recorded digest.
        policy: The policy on violations; None leaves the recorded policy and class.
        integrity: Its integrity class, as `PolicyChange.integrity`.
        version: The version of the user's code, as `Head.code_version`; a deployment without a policy leaves the
            recorded version.
    """

    code_digest: str = ""
    policy: ViolationPolicy | None = None
    integrity: str = ""
    version: CodeVersion | None = None


NOTHING_DEPLOYED = Deployed()
"""Of an operator's claim."""


def commit_claim(
    named_epoch: int,
    table_id: str,
    check: Callable[[Head], object],
    *,
    desired: Desired | None = None,
    reason: str = "claimed",
    cause: str = "",
    deployed: Deployed = NOTHING_DEPLOYED,
) -> Proposal:
    """A claim: replaces the epoch it names, and no other.

    Args:
        named_epoch: The epoch that this claim replaces.
        table_id: Delta's id of the output table.
        check: Refuses a head that this run may not claim (halted, another stream).
        desired: The new desired state; None leaves it unchanged. A halted stream stays halted, and takes the
            new state when it is resumed. The first claim makes a new stream `bounded` by default.
        reason: The reason, and the operator.
        cause: Why the run started, for the history of the stream.
        deployed: The declaration that will write.
    """

    def next_head(base: Base) -> Head:
        check(base.head)
        if base.head.epoch != named_epoch:
            raise Fenced(named_epoch + 1, base.head.epoch)
        code = _find_code(base.head, deployed.code_digest)
        policies = _find_policies(base.head, deployed)
        version = base.head.code_version if deployed.policy is None else deployed.version
        claimed = msgspec.structs.replace(
            base.head, epoch=named_epoch + 1, table_id=table_id, code=code, code_version=version, policies=policies
        )
        if desired is not None:
            return _with_wanted_state(base, claimed, desired, reason)
        if named_epoch == 0:
            return _with_desired(claimed, Desired.BOUNDED, "bounded runs only")
        return claimed

    metadata = {delta_log.CAUSE: cause} if cause else {}
    return Proposal(kind=commit_kinds.CLAIM, next_head=next_head, epoch=named_epoch + 1, metadata=metadata)


def _find_code(head: Head, digest: str) -> FoldCode | None:
    """The code that writes from now on: the known code, or new code from the next batch on."""
    is_recorded = not digest or (head.code is not None and head.code.digest == digest)
    if is_recorded:
        return head.code
    return FoldCode(digest, head.batch + 1)


def _find_policies(head: Head, deployed: Deployed) -> tuple[PolicyChange, ...]:
    """The policies up to now, and a new one from the next batch on; a policy without a batch is left out."""
    if deployed.policy is None:
        return head.policies
    # A policy without a batch is left out: its runs have written nothing.
    policies = tuple(change for change in head.policies if change.first_batch <= head.batch)
    if policies and (policies[-1].policy, policies[-1].integrity) == (deployed.policy, deployed.integrity):
        return policies
    return (*policies, PolicyChange(head.batch + 1, deployed.policy, deployed.integrity))


def commit_batch(
    writer: Writer, planned: BatchCommit, *, kind: CommitKind | None = None, reason: str = "resumed"
) -> Proposal:
    """A batch of the current writer. One with findings is a halt; the one after a halt resumes.

    Raises:
        ValueError: Its ledger file is not written.
    """
    if planned.ledger is None:
        raise ValueError(f"batch {planned.number} has no ledger file")

    def next_head(base: Base) -> Head:
        head = base.head
        check_writer(head, writer)
        _check_follows(head, planned)
        check_hour_open(head, planned.commit_hour)
        is_full = planned.full_ledger_at is not None
        return msgspec.structs.replace(
            _halted_or_resumed(head, planned.findings, reason),
            batch=planned.number,
            batch_version=base.version + 1,
            hour=planned.commit_hour,
            findings=planned.findings,
            halted_topics=add_halted_topics(head.halted_topics, planned),
            accepts_burst=planned.accepts_burst,
            ledger=planned.ledger,
            quarantine=_added(head.quarantine, planned.quarantine, planned.number),
            late=_added(head.late, planned.late, planned.number),
            archive=_added(head.archive, planned.archive, planned.number),
            full_ledger_batch=planned.number if is_full else head.full_ledger_batch,
            full_ledger_at=planned.full_ledger_at or head.full_ledger_at,
            last_resumption=planned.resumption or head.last_resumption,
            lost=add_losses(head.lost, planned.number, planned.losses),
        )

    return Proposal(
        kind=kind or _choose_kind(planned),
        next_head=next_head,
        adds=planned.files,
        batch=planned.number,
        needs=planned.needs,
    )


def _check_follows(head: Head, planned: BatchCommit) -> None:
    """Refuse a batch that does not follow the last one. Raises TableError."""
    if head.batch != planned.number - 1:
        raise TableError(
            f"batch {planned.number} does not follow the last committed batch {head.batch}",
            next_step="start the stream again: it continues from the ledger",
        )


def _choose_kind(planned: BatchCommit) -> CommitKind:
    if planned.findings or planned.topic_findings:
        return commit_kinds.HALT
    return commit_kinds.BATCH if planned.resumption is None else commit_kinds.RESUME


def add_halted_topics(before: Iterable[HaltedTopic], planned: BatchCommit) -> tuple[HaltedTopic, ...]:
    """The halted topics after a batch. Evidence that is known is not listed twice, and one may supersede another."""
    halted = {each.topic_id: each for each in before if each.topic_id not in planned.resumed_topics}
    for finding in planned.topic_findings:
        new = HaltedTopic(finding.topic, finding.topic_id, planned.number, ())
        topic = halted.setdefault(finding.topic_id, new)
        if finding not in topic.findings:
            findings = [earlier for earlier in topic.findings if not _is_superseded(earlier, finding)]
            halted[finding.topic_id] = msgspec.structs.replace(topic, findings=(*findings, finding))
    return tuple(halted.values())


def _is_superseded(before: Finding, new: Finding) -> bool:
    """Whether the message of a finding is gone: retention has deleted it, or somebody its topic."""
    ends = {Fault.TOPIC_DELETED, Fault.RECREATED}  # each partition has a finding of it
    if new.cause in ends:
        return before.cause not in ends or before.partition == new.partition
    here = before.partition == new.partition and new.offset <= before.offset < new.until
    return new.cause == Fault.EXPIRED and here


def commit_closed_hour(hour: str) -> Proposal:
    """Close an hour, so that nothing can be committed into it any more."""

    def next_head(base: Base) -> Head:
        return msgspec.structs.replace(base.head, closed_hour=max(hour, base.head.closed_hour))

    return Proposal(kind=commit_kinds.CLOSE, next_head=next_head)


def set_desired_state(writer: Writer, desired: Desired, reason: str) -> Proposal:
    """Record the new desired state of the stream; by the writer of this epoch."""

    def next_head(base: Base) -> Head:
        check_writer(base.head, writer)
        return _with_wanted_state(base, base.head, desired, reason)

    return Proposal(kind=commit_kinds.DESIRE, next_head=next_head)


def raise_rewind_floor(generation: int, batch: int) -> Proposal:
    """Raise the oldest batch that a rewind may go back to; by any process, within the same generation."""

    def next_head(base: Base) -> Head:
        # The batches of another generation may be others.
        if base.head.generation != generation:
            raise TableError(
                f"generation {generation} has become {base.head.generation}",
                next_step="nothing: the next clean-up counts again",
            )
        floor = max(batch, base.head.rewind_floor)
        rewinds = tuple(each for each in base.head.rewinds if each.batch > floor)
        return msgspec.structs.replace(base.head, rewind_floor=floor, rewinds=rewinds)

    return Proposal(kind=commit_kinds.FLOOR, next_head=next_head)


class NoSuchLoss(TableError):
    """A loss that is not the newest unaccepted loss.

    Attributes:
        stream: Name of the stream.
        batch: The batch that was named.
    """

    def __init__(self, stream: str, batch: int, newest: int) -> None:
        problem = "it has no unaccepted loss"
        if newest:
            problem = f"the newest loss is that of batch {newest}"
        step = f"lockstep losses {stream} lists them"
        super().__init__(f"stream {stream} has no open loss {batch}: {problem}", next_step=step)
        self.stream = stream
        self.batch = batch


def accept_loss(batch: int, at: float, cause: str) -> Proposal:
    """Accept all losses up to that of a batch, which is the newest; by any process, while a writer writes.

    Args:
        batch: The batch; a later loss would be accepted unseen.
        at: The time, in seconds since 1970 (UTC).
        cause: The reason and the operator.

    The commit raises:
        NoSuchLoss: Another loss is the newest open loss.
    """

    def next_head(base: Base) -> Head:
        lost = base.head.lost
        if not lost.open:
            raise NoSuchLoss(base.head.stream, batch, 0)
        if lost.last_batch != batch:
            raise NoSuchLoss(base.head.stream, batch, lost.last_batch)
        return msgspec.structs.replace(base.head, lost=accept_losses(lost, at, cause))

    return Proposal(kind=commit_kinds.ACCEPT, next_head=next_head, metadata={delta_log.CAUSE: f"loss {batch}: {cause}"})


def commit_schema(writer: Writer, alter: Callable[[DeltaTable, CommitProperties], None]) -> Proposal:
    """A change of the table's columns, by the writer of this epoch; nothing else changes."""

    def check(head: Head) -> None:
        check_writer(head, writer)

    return Proposal(kind=commit_kinds.SCHEMA, next_head=keep_head(check), alter=alter)


def keep_head(check: Callable[[Head], object]) -> Callable[[Base], Head]:
    """The head of commits that change files only, after a check on the base."""

    def next_head(base: Base) -> Head:
        check(base.head)
        return base.head

    return next_head


def _with_wanted_state(base: Base, head: Head, desired: Desired, reason: str) -> Head:
    return msgspec.structs.replace(_with_desired(head, desired, reason), desired_version=base.version + 1)


def _with_desired(head: Head, desired: Desired, reason: str) -> Head:
    if head.desired is Desired.HALTED:
        return msgspec.structs.replace(head, resumes_as=desired)
    return msgspec.structs.replace(head, desired=desired, reason=reason)


def _halted_or_resumed(head: Head, findings: tuple[Finding, ...], reason: str) -> Head:
    """The desired state after a batch: only a halt and the resumption change it."""
    halted = head.desired is Desired.HALTED
    if findings:
        resumes_as = head.resumes_as if halted else head.desired
        reason = str(findings[0].without_session())  # it is shown in alarms, which no erasure reaches
        return msgspec.structs.replace(head, desired=Desired.HALTED, reason=reason, resumes_as=resumes_as)
    if halted:
        return msgspec.structs.replace(head, desired=head.resumes_as, reason=reason)
    return head


def _added(before: SideBatch | None, files: tuple[SideFile, ...], batch: int) -> SideBatch | None:
    """The head's entry of a side table after a batch that may add to it."""
    if not files:
        return before
    previous_batch = before.batch if before is not None else 0
    return SideBatch(batch, previous_batch, files)


def check_hour_open(head: Head, hour: str) -> None:
    """Refuse an hour into which nothing can be committed any more. Raises HourClosed."""
    if hour <= head.closed_hour or hour < head.hour:
        raise HourClosed(f"hour {hour} is closed", next_step="nothing: the batch is planned again")


def check_writer(head: Head, writer: Writer) -> None:
    """Refuse a base that another writer holds. Raises Fenced."""
    if head.epoch != writer.epoch or head.generation != writer.generation:
        raise Fenced(writer.epoch, head.epoch)
