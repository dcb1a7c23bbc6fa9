"""Retention of quarantine and late table: drops the messages of old batches, while the stream continues.

The head of the output table names the last batch concerned before a file is removed. So a proof knows at every moment
which messages need not be there, and a retention that is killed in between is completed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import msgspec

from lockstep.errors import CommitUnknown, TableError
from lockstep.features.retention.commit_kinds import QUARANTINE_RETENTION
from lockstep.features.retention.rows import PLANS_MAX, find_oldest_hour
from lockstep.features.retention.side_files import drop_side_files, find_last_unrepeatable
from lockstep.model.commit_hour import find_current_hour
from lockstep.operations.plan_frame import (
    Description,
    Labelled,
    Plan,
    Prepared,
    Records,
    Unit,
    refuse_changed,
)
from lockstep.operations.stream_table import open_table
from lockstep.table import delta_log, side_tables, transactions
from lockstep.table.commit import Base, Proposal
from lockstep.table.head import Head, QuarantineRetention
from lockstep.table.layout import StreamFolders
from lockstep.table.side_files import LedgerFile, SideTableFile, list_live_files, list_side_files, list_side_tables


class DroppedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one table that a retention drops.

    Attributes:
        table: "quarantine" or "late".
        files: Their files.
        messages: Messages, those of undone batches included.
        bytes: Bytes of the files.
        first_hour: Hour of the oldest file, "YYYY-MM-DDTHH" UTC; empty without any.
        last_hour: Hour of the newest file.
        first_batch: The first batch; 0 without any.
        last_batch: The last batch.
    """

    table: str
    files: tuple[SideTableFile, ...] = ()
    messages: int = 0
    bytes: int = 0
    first_hour: str = ""
    last_hour: str = ""
    first_batch: int = 0
    last_batch: int = 0


class QuarantineRetentionPlan(Plan, frozen=True, kw_only=True):
    """Messages that a retention of quarantine and late table drops.

    Attributes:
        before_hour: Messages of batches committed before it are dropped, "YYYY-MM-DDTHH" UTC; empty before the first.
        batch: The last batch whose messages are dropped; 0 for none.
        tables: The messages dropped from each table.
        dropped_before: The messages dropped earlier.
    """

    PLAN: ClassVar[str] = "the retention of quarantine and late table"

    before_hour: str
    batch: int = 0
    tables: tuple[DroppedMessages, ...] = ()
    dropped_before: QuarantineRetention | None = None

    @property
    def dropped_up_to(self) -> int:
        """The last batch whose messages were dropped earlier; 0 for none."""
        return 0 if self.dropped_before is None else self.dropped_before.batch

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(table.messages for table in self.tables)

    @property
    def files(self) -> int:
        """Number of files."""
        return sum(len(table.files) for table in self.tables)

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return sum(table.bytes for table in self.tables)

    @property
    def is_due(self) -> bool:
        """Whether there are messages to drop."""
        return self.batch > self.dropped_up_to or bool(self.files)

    def describe(self) -> Description:
        """Return its description."""
        return self.make_description("messages to drop", self.list_facts(), records=self.list_records())

    def list_facts(self) -> tuple[Labelled, ...]:
        """Return the facts of the plan and of its result."""
        return (
            Labelled("messages", self.messages),
            Labelled("of batches up to", self.batch),
            Labelled("before hour", self.before_hour),
            Labelled("files", self.files),
            Labelled("bytes", self.bytes, Unit.BYTES),
        )

    def list_records(self) -> tuple[Records, ...]:
        """Return the tables with messages to drop."""
        return (
            Records.of("tables", self.tables, "table messages bytes files first_hour last_hour first_batch last_batch"),
        )


class QuarantineRetained(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a retention of quarantine and late table.

    Attributes:
        plan: The dropped messages.
        retention: Its record in the head; None while nothing was ever dropped.
    """

    plan: QuarantineRetentionPlan
    retention: QuarantineRetention | None

    def describe(self) -> Description:
        """Return its description."""
        plan = self.plan
        return Description(
            title=f"{plan.stream}: messages dropped", facts=plan.list_facts(), records=plan.list_records()
        )


class _Overtaken(TableError):
    """The head is not that of the plan any more."""


def plan_quarantine_retention(folders: StreamFolders, keep: timedelta) -> QuarantineRetentionPlan:
    """The plan of a retention of quarantine and late table now; as `drop_old_messages`. Changes nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: A table does not match its head.
    """
    return _plan(folders, open_table(folders).base().head, keep)


def prepare_quarantine_retention(
    folders: StreamFolders, keep: timedelta, *, cause: str
) -> Prepared[QuarantineRetentionPlan, QuarantineRetained]:
    """Plan as `plan_quarantine_retention`; the commit drops the messages that were planned, and no others.

    The commit raises:
        Refused: Other messages of these batches are in the tables now.
        TableError, CommitUnknown: As `drop_old_messages`.
    """
    head = open_table(folders).base().head
    side_tables.catch_up_alongside_writer(folders, head)
    plan = _plan(folders, head, keep)
    return Prepared(plan, partial(drop_old_messages, folders, keep, cause=cause, shown=plan))


def drop_old_messages(
    folders: StreamFolders, keep: timedelta, *, cause: str, shown: QuarantineRetentionPlan | None = None
) -> QuarantineRetained:
    """Drop messages that are older than the retention; safe while a writer, readers and compaction run.

    1. Bring the tables forward to the head, so that no addition of an old batch is missing.
    2. Plan: the last batch of which, and of all batches before it, the messages go.
    3. Commit it in the head, if it is not there yet, with the last batch that no fold can repeat without its messages.
       Again from 1 if somebody else did so, or has rewound the stream.
    4. Remove the files from each table. A retention that was killed before has left some.

    Args:
        folders: Folders of the stream.
        keep: How long messages stay, in whole hours, counted from the newest batch.
        cause: Why, and who.
        shown: The plan that was shown: its batches, not those that are older now.

    Raises:
        Refused: The plan differs from the plan that was shown.
        NoTable: The stream has never run.
        TableError: A table does not match its head, or has a foreign commit.
        CommitUnknown: The store did not answer.
    """
    output = open_table(folders)
    for _ in range(PLANS_MAX):
        head = output.base().head
        side_tables.catch_up_alongside_writer(folders, head)  # 1
        plan = _plan(folders, head, keep) if shown is None else _plan_again(folders, head, shown)  # 2
        if plan.batch > head.quarantine_dropped_up_to:
            # Read before the commit: afterwards another process may delete the files.
            unknown_up_to = _find_unknown(folders, plan, head)
            try:
                head = output.commit(_propose(plan, head, unknown_up_to, cause)).head  # 3
            except _Overtaken:
                continue
        up_to = head.quarantine_dropped_up_to
        dropped = [_describe(side, drop_side_files(side, up_to)) for side in list_side_tables(folders)]  # 4
        carried_out = msgspec.structs.replace(plan, tables=tuple(dropped))
        return QuarantineRetained(plan=carried_out, retention=head.quarantine_retention)
    raise CommitUnknown(f"{folders.table}: other commits overtook {PLANS_MAX} plans", next_step="try again")


def find_last_old_batch(ledger: Iterable[LedgerFile], before_hour: str) -> int:
    """The last batch of those committed before an hour; 0 for none. Pure.

    Batches after the first of that hour or a later hour stay: a clock that went back makes none of them older.
    """
    last = 0
    for file in sorted(ledger, key=lambda file: file.name.first):
        if file.name.hour >= before_hour:
            break
        last = file.name.last
    return last


def find_last_dropped_batch(files: Iterable[SideTableFile], last_old_batch: int) -> int:
    """The last batch of the files that may go as a whole; 0 for none. Pure.

    No file that stays has a message of this batch, or of one before it.
    """
    bound = last_old_batch
    newest_first = sorted(files, key=lambda file: file.name.last, reverse=True)
    for file in newest_first:
        if file.name.last > bound:
            bound = min(bound, file.name.first - 1)
    return max((file.name.last for file in newest_first if file.name.last <= bound), default=0)


def _plan_again(folders: StreamFolders, head: Head, shown: QuarantineRetentionPlan) -> QuarantineRetentionPlan:
    """The plan that was shown, with the files of now; refused if other messages would go."""
    live = {side: list_side_files(delta_log.open_delta_table(side)) for side in list_side_tables(folders)}
    plan = msgspec.structs.replace(
        shown, tables=_describe_tables(live, shown.batch), dropped_before=head.quarantine_retention
    )
    refuse_changed(shown, plan, ("messages", "dropped_up_to"))
    return plan


def _describe_tables(live: Mapping[Path, Iterable[SideTableFile]], batch: int) -> tuple[DroppedMessages, ...]:
    def is_old(file: SideTableFile) -> bool:
        return file.name.last <= batch

    return tuple(_describe(side, filter(is_old, files)) for side, files in live.items())


def _plan(folders: StreamFolders, head: Head, keep: timedelta) -> QuarantineRetentionPlan:
    before_hour = find_oldest_hour(head, find_current_hour(), keep)
    tables = {side: delta_log.open_delta_table(side) for side in list_side_tables(folders)}
    live = {side: list_side_files(table) for side, table in tables.items()}
    # The hour of a batch is that of its ledger file.
    ledger = list_live_files(delta_log.open_delta_table(folders.ledger))
    last_old = min(find_last_old_batch(ledger, before_hour), head.batch)
    # The entry of the newest retention may be lost with a disk: the tables themselves record their drops.
    removed = [table.transaction_version(transactions.DROPPED) or 0 for table in tables.values()]
    files = chain.from_iterable(live.values())
    batch = max(find_last_dropped_batch(files, last_old), head.quarantine_dropped_up_to, *removed, 0)
    return QuarantineRetentionPlan(
        stream=folders.stream,
        before_hour=before_hour,
        batch=batch,
        tables=_describe_tables(live, batch),
        dropped_before=head.quarantine_retention,
    )


def _describe(side: Path, files: Iterable[SideTableFile]) -> DroppedMessages:
    ordered = tuple(sorted(files, key=lambda file: file.name.first))
    if not ordered:
        return DroppedMessages(table=side.name)
    return DroppedMessages(
        table=side.name,
        files=ordered,
        messages=sum(file.rows for file in ordered),
        bytes=sum(file.size for file in ordered),
        first_hour=min(file.name.hour for file in ordered),
        last_hour=max(file.name.hour for file in ordered),
        first_batch=ordered[0].name.first,
        last_batch=max(file.name.last for file in ordered),
    )


def _find_unknown(folders: StreamFolders, plan: QuarantineRetentionPlan, head: Head) -> int:
    """The last batch of which, once its messages are dropped, a fold does not find out what became of each."""
    since = head.quarantine_dropped_up_to
    if plan.batch > max((table.last_batch for table in plan.tables), default=0):
        return plan.batch  # removed by a retention of which the head has lost the word
    unknown_up_to = max(head.quarantine_unknown_up_to, 0)
    for table in plan.tables:
        if table.table == folders.quarantine.name:
            files = [file for file in table.files if file.name.last > since]
            unknown_up_to = max(unknown_up_to, find_last_unrepeatable(folders.quarantine, files))
    return unknown_up_to


def _propose(plan: QuarantineRetentionPlan, seen: Head, unknown_up_to: int, cause: str) -> Proposal:
    counted = _count_new(plan, seen)
    earlier = seen.quarantine_retention
    dropped = QuarantineRetention(
        hour=plan.before_hour,
        batch=plan.batch,
        at=time.time(),
        cause=cause,
        quarantined=counted.get("quarantine", 0) + (0 if earlier is None else earlier.quarantined),
        late=counted.get("late", 0) + (0 if earlier is None else earlier.late),
        unknown_up_to=unknown_up_to,
    )

    def next_head(base: Base) -> Head:
        if base.head.quarantine_retention != earlier or base.head.generation != seen.generation:
            raise _Overtaken("the head has changed", next_step="nothing: it is planned again")
        return msgspec.structs.replace(base.head, quarantine_retention=dropped)

    return Proposal(kind=QUARANTINE_RETENTION, next_head=next_head)


def _count_new(plan: QuarantineRetentionPlan, head: Head) -> Mapping[str, int]:
    """The messages that count and that no retention has dropped before, by table."""
    valid = head.valid_batches
    since = head.quarantine_dropped_up_to
    counts = dict[str, int]()
    for table in plan.tables:
        new = [file for file in table.files if file.name.last > since]
        counting = [file for file in new if file.name.first <= valid.get(file.name.generation, 0)]
        counts[table.table] = sum(file.rows for file in counting)
    return counts
