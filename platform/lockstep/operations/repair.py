"""Runs every check of a start, and repairs what can be repaired safely.

Repairable: a torn newest log entry and foreign commits (moved away, never deleted), and a ledger behind the head, or
one batch ahead of it: that batch is undone, and its messages are read again. Everything else is reported with a
remedy: lockstep cannot restore a lost file.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import is_writer_alive, list_epochs, read_heartbeat
from lockstep.errors import LockstepError, TableError, format_some
from lockstep.integrity.resume_options import make_resume_command
from lockstep.operations.inspect.state import find_state_version, read_segments
from lockstep.operations.lost_batch import LostBatch, find_lost_batch, take_back
from lockstep.operations.plan_frame import Description, Obstacle, Plan, Prepared, Records, Refused
from lockstep.operations.stream_table import NoTable, has_table
from lockstep.state.changelog import StateDamaged
from lockstep.storage import find_storage
from lockstep.table import delta_log, ledger, side_tables, torn_entry, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.foreign_commits import find_foreign_commit, find_foreign_versions
from lockstep.table.head import Desired, Head, SideFile
from lockstep.table.layout import StreamFolders
from lockstep.table.log_tail import make_unreadable
from lockstep.table.parquet import find_wrong_files, list_named_files

SET_ASIDE = "set-aside"
"""Folder of the entries that were moved out of a log, below the stream's control folder."""


class Condition(Enum):
    """Result of a check."""

    OK = "ok"
    REPAIRABLE = "repairable"
    REPAIRED = "repaired"
    BROKEN = "broken"


class Check(msgspec.Struct, frozen=True):
    """One check of a start.

    Attributes:
        check: Name of the check.
        condition: One of `Condition`: "ok", repairable, repaired, or "broken", which lockstep cannot repair.
        found: The finding.
        next_step: Remedy; empty when it is ok.
    """

    check: str
    condition: str
    found: str
    next_step: str = ""


class Repair(Plan, frozen=True, kw_only=True):
    """All checks of a stream, in the order in which a start needs them; the first that is not ok may hide others.

    Attributes:
        checks: The checks.
    """

    PLAN: ClassVar[str] = "the repair"

    checks: tuple[Check, ...]

    def describe(self) -> Description:
        """Return its description."""
        records = Records.of("checks", self.checks, "check condition found next_step")
        return self.make_description("checks of a start", (), records=(records,))

    @property
    def is_due(self) -> bool:
        """Whether a repair would change something."""
        return any(check.condition == Condition.REPAIRABLE.value for check in self.checks)

    @property
    def whole(self) -> bool:
        """Whether a start would find no problem."""
        return all(check.condition in {Condition.OK.value, Condition.REPAIRED.value} for check in self.checks)


def prepare_repair(folders: StreamFolders, *, everything: bool = False) -> Prepared[Repair, Repair]:
    """Plan a repair as `repair_stream`; its commit repairs the problems that the plan shows.

    A problem that appears only once another is repaired is left to the next repair.

    Args:
        folders: Folders of the stream.
        everything: Repair all, also problems that the plan cannot show yet.

    The commit raises:
        Refused: There is a live writer.
    """
    plan = repair_stream(folders, apply=False)
    if plan.is_due:  # a plan without repairs disturbs no writer
        plan = msgspec.structs.replace(plan, obstacles=tuple(_find_writer(folders)))
    shown = None if everything else plan
    return Prepared(plan, partial(repair_stream, folders, apply=True, shown=shown))


def repair_stream(folders: StreamFolders, *, apply: bool, shown: Repair | None = None) -> Repair:
    """Run every check of a start, and more; repair if that is safe.

    1. The newest entries of both logs are complete.
    2. The logs of all tables are ours, and the head is readable.
    3. The ledger holds the last batch of the head.
    4. The files of the newest version exist, of the table and of its side tables.
    5. The state of every partition is intact, byte by byte.
    6. The stream is not halted.

    A check is left out if an earlier check that it needs fails.

    Args:
        folders: Folders of the stream.
        apply: Repair; without it nothing is changed.
        shown: Repair only the problems of these checks; by default all.

    Raises:
        NoTable: The stream has never run.
        Refused: There is a live writer, and something needs repair.
    """
    if not has_table(folders):
        raise NoTable(folders.stream, folders.root)
    if apply and (writers := list(_find_writer(folders))):
        raise Refused(folders.stream, Repair.PLAN, writers)
    checks = None if shown is None else shown.checks
    agreed = _Agreement(apply, checks)
    return Repair(stream=folders.stream, checks=tuple(_checks(folders, agreed)))  # 1 to 6


class _Agreement(NamedTuple):
    """What may be repaired: nothing, everything, or the checks that were shown."""

    is_given: bool
    shown: tuple[Check, ...] | None = None

    def covers(self, planned: Check) -> bool:
        """Whether this may be repaired."""
        return self.is_given and (self.shown is None or planned in self.shown)


def _checks(folders: StreamFolders, agreed: _Agreement) -> Iterator[Check]:
    for table in (folders.table, folders.ledger):  # 1
        check = _newest_entry(folders, table, agreed)
        yield check
        if check.condition in {Condition.REPAIRABLE.value, Condition.BROKEN.value}:
            return
    for check in _foreign_commits(folders, agreed):  # 2
        yield check
        if check.condition != Condition.REPAIRED.value:
            return
    try:
        yield from _beyond_the_newest_entries(folders, agreed)
    except (TableError, DeltaError) as error:
        yield _unreadable(error)


def _beyond_the_newest_entries(folders: StreamFolders, agreed: _Agreement) -> Iterator[Check]:
    """Steps 2 to 6."""
    head = OutputLog(folders.table).base().head  # 2
    yield Check("log of the table", Condition.OK.value, f"batch {head.batch}, epoch {head.epoch}, {head.desired.value}")
    behind = _ledger(folders, head, agreed)  # 3
    yield behind
    for table in filter(delta_log.has_log, _list_tables(folders)):  # 4
        yield _data_files(table)
    if behind.condition in {Condition.OK.value, Condition.REPAIRED.value}:
        yield _state(folders, head)  # 5
    yield _halt(head)  # 6


def _list_tables(folders: StreamFolders) -> tuple[Path, ...]:
    return folders.table, folders.ledger, folders.quarantine, folders.late, folders.archive


def _newest_entry(folders: StreamFolders, table: Path, agreed: _Agreement) -> Check:
    name = f"newest entry of {table.name}/_delta_log"
    version = torn_entry.find_torn_version(table)
    if not delta_log.has_log(table):
        return Check(name, Condition.BROKEN.value, "there is no log", f"restore {table} from a copy")
    if version is None:
        return Check(name, Condition.OK.value, f"version {torn_entry.find_newest_version(table)} is whole")
    path = delta_log.make_entry_path(table, version)
    problem = make_unreadable(table, version).problem
    if wrong := _find_needed(folders, table, version):
        step = f"it was whole once, and later entries build on it ({wrong}): restore {path} from a copy"
        return Check(name, Condition.BROKEN.value, problem, step)
    step = f"lockstep repair {folders.stream} sets it aside: {_describe_loss(folders, table, version)}"
    planned = Check(name, Condition.REPAIRABLE.value, problem, step)
    if not agreed.covers(planned):
        return planned
    # Moved, never deleted: an operator can put it back.
    copy = torn_entry.move_out_of_log(table, version, folders.control / SET_ASIDE)
    return Check(name, Condition.REPAIRED.value, f"{problem}: set aside as {copy}", "start the stream")


def _find_needed(folders: StreamFolders, table: Path, version: int) -> str:
    """Name the parts that would be missing without a torn entry; empty if it can be set aside."""
    if version == 0 or not torn_entry.is_readable_without(table, version):
        return "the log does not go back to the version before it"
    if table != folders.table:
        return ""
    before = _find_before(folders, version)
    if before is None:
        return "the entry before it has no head"
    files = ((table / file.path, file.size) for file in delta_log.read_live_files(table, version - 1).values())
    if wrong := format_some(find_wrong_files(files)):
        return f"files of the version before it are gone: {wrong}"
    in_ledger = _held_behind(folders, before)
    if in_ledger == before.batch or find_lost_batch(folders, before) is not None:
        return ""
    return f"the ledger holds batch {in_ledger}, the entry before it {before.batch}"


def _find_before(folders: StreamFolders, version: int) -> Head | None:
    return delta_log.read_head(folders.table, version - 1)


def _held_behind(folders: StreamFolders, before: Head) -> int:
    """The batch that the ledger holds; if its newest entry is torn, too, that entry was of the same batch."""
    if torn_entry.find_torn_version(folders.ledger) is not None:
        return before.batch
    return _held(folders.ledger)


def _describe_loss(folders: StreamFolders, table: Path, version: int) -> str:
    """What setting a torn entry aside undoes."""
    previous = None
    if table == folders.table:
        previous = _find_before(folders, version)
    if previous is None or _held_behind(folders, previous) == previous.batch:
        return "its commit was never confirmed"
    lost = find_lost_batch(folders, previous)
    again = f"the messages after batch {previous.batch} are read again from Kafka"
    if lost is not None and lost.operation:
        return f"{again}; repeat this operation: {lost.operation}"
    return again


def _foreign_commits(folders: StreamFolders, agreed: _Agreement) -> Iterator[Check]:
    """Foreign commits on top of a log of ours; empty without any."""
    for table in _list_tables(folders):
        newest = torn_entry.find_newest_version(table)
        if newest is not None and (versions := find_foreign_versions(table, newest)):
            yield _foreign_commit(folders, table, versions, agreed)


def _foreign_commit(folders: StreamFolders, table: Path, versions: list[int], agreed: _Agreement) -> Check:
    """Moving it away restores the earlier table: its files must exist, and no log checkpoint may hold the commit."""
    name = f"commits to {table.name}"
    problem = find_foreign_commit(table, versions[-1]).problem
    restore = f"restore {table} from a copy of before version {versions[-1]}, or put the files back"
    if torn_entry.is_in_checkpoint(table, versions[-1]):
        return Check(name, Condition.BROKEN.value, f"{problem}; a log checkpoint holds it", restore)
    if wrong := format_some(find_wrong_files(list_named_files(table, versions[-1] - 1))):
        gone = f"{problem}; files of the version before it are gone: {wrong}"
        return Check(name, Condition.BROKEN.value, gone, restore)
    step = f"lockstep repair {folders.stream} sets it aside: the table is then as it was before"
    planned = Check(name, Condition.REPAIRABLE.value, problem, step)
    if not agreed.covers(planned):
        return planned
    # Newest first: an interrupted repair leaves a log without a gap.
    copies = [torn_entry.move_out_of_log(table, version, folders.control / SET_ASIDE) for version in versions]
    repaired = f"{problem}: set aside as {format_some([*map(str, copies)])}"
    return Check(name, Condition.REPAIRED.value, repaired, "start the stream")


def _held(folder: Path) -> int:
    return delta_log.open_delta_table(folder).transaction_version(transactions.BATCH) or 0


def _unreadable(error: Exception) -> Check:
    if isinstance(error, LockstepError):
        return Check("logs", Condition.BROKEN.value, error.problem, error.next_step)
    problem = str(error).splitlines()[0]
    return Check("logs", Condition.BROKEN.value, problem, "restore the folder that is named from a copy")


def _ledger(folders: StreamFolders, head: Head, agreed: _Agreement) -> Check:
    """Check the ledger; restored from an older copy, it may be behind by more than one batch."""
    name = "ledger"
    newest = _held(folders.ledger)
    state = f"it holds batch {newest}, the head is at {head.batch}"
    if newest == head.batch:
        return Check(name, Condition.OK.value, state)
    if newest > head.batch:
        lost = find_lost_batch(folders, head)
        if lost is not None:
            return _take_back(folders, head, lost, state, agreed)
        step = "the table's log has lost entries: restore table/_delta_log from a copy that is as new as the ledger"
        return Check(name, Condition.BROKEN.value, state, step)
    missing = _list_missing(folders, newest, head)
    reached = missing[0].after if missing else head.batch
    gone = [str(addition.batch) for addition in missing if not _is_there(folders, addition.file)]
    gone += [str(batch) for batch in range(newest + 1, reached + 1)]  # the log does not go back to them
    if gone:
        step = (
            f"restore the files of {folders.ledger} from a copy; without them the offsets of these batches are unknown"
        )
        return Check(name, Condition.BROKEN.value, f"{state}; no ledger file of batch {format_some(gone)}", step)
    step = f"a start brings one batch forward by itself; more: lockstep repair {folders.stream}"
    planned = Check(name, Condition.REPAIRABLE.value, state, step)
    if not agreed.covers(planned):
        return planned
    for addition in missing:
        side_tables.SideLog(folders.ledger).catch_up((addition.file,), addition.batch, after=addition.after)
    return Check(name, Condition.REPAIRED.value, f"{state}: brought forward", "start the stream")


def _take_back(folders: StreamFolders, head: Head, lost: LostBatch, found: str, agreed: _Agreement) -> Check:
    """The table has lost its newest batch, which is repaired by a batch: its messages are read again."""
    again = "start the stream: it reads them again"
    if lost.operation:
        again = f"repeat this operation: {lost.operation}"
    step = f"lockstep repair {folders.stream} takes batch {lost.last} back; then {again}"
    planned = Check("ledger", Condition.REPAIRABLE.value, found, step)
    if not agreed.covers(planned):
        return planned
    take_back(folders, head, lost)
    return Check("ledger", Condition.REPAIRED.value, f"{found}: taken back to batch {head.batch}", again)


class _Addition(NamedTuple):
    """The addition of a batch to the ledger.

    Attributes:
        batch: The batch.
        after: The batch that the ledger holds before: the one before it, or of a promotion that before its rows.
        file: The file.
    """

    batch: int
    after: int
    file: SideFile


def _list_missing(folders: StreamFolders, held: int, head: Head) -> list[_Addition]:
    """The additions that the ledger lacks after its last batch, by entries of the output table, oldest first."""
    additions = list[_Addition]()
    version = head.batch_version
    while version > 0 and (not additions or additions[0].after > held):
        earlier = delta_log.read_head(folders.table, version)
        if earlier is None or earlier.batch <= held:
            break
        wanted = additions[0].after if additions else earlier.batch
        if earlier.ledger is not None and earlier.batch == wanted:  # entries that are no batches repeat the last one
            additions.insert(0, _Addition(earlier.batch, earlier.batch_before, earlier.ledger))
        version -= 1
    return additions


def _is_there(folders: StreamFolders, file: SideFile) -> bool:
    status = find_storage(folders.ledger).get_status(folders.ledger / file.path)
    return status is not None and status.size == file.size


def _data_files(table: Path) -> Check:
    files = list_named_files(table)
    if wrong := format_some(find_wrong_files(files)):
        step = "restore them from a copy: readers of the table fail until then"
        return Check(f"files of {table.name}", Condition.BROKEN.value, f"missing or of another size: {wrong}", step)
    return Check(f"files of {table.name}", Condition.OK.value, f"{len(files)} files are there, with their sizes")


def _state(folders: StreamFolders, head: Head) -> Check:
    rows = ledger.read_positions(folders, head).values()
    segments = 0
    wrong = []
    for row in rows:
        try:
            segments += sum(1 for _ in read_segments(find_state_version(row), folders.state))
        except StateDamaged as error:
            wrong.append(f"{row.topic}/{row.partition}: {error.problem}")
    if wrong:
        step = f"lockstep rebuild {folders.stream} --plan: from an older state and Kafka; the table's rows are whole"
        return Check("state", Condition.BROKEN.value, format_some(wrong), step)
    return Check("state", Condition.OK.value, f"{len(rows)} partitions, {segments} segments read, every checksum right")


def _halt(head: Head) -> Check:
    if head.all_findings:
        reason = f"topics are halted: {head.all_findings[0]}"
        if head.desired is Desired.HALTED:
            reason = head.reason
        return Check("halt", Condition.BROKEN.value, reason, make_resume_command(head.stream, head.all_findings))
    return Check("halt", Condition.OK.value, f"not halted; {head.desired.value}")


def _find_writer(folders: StreamFolders) -> Iterator[Obstacle]:
    """The epoch may be unreadable in the log, so the newest heartbeat file decides."""
    newest = max(list_epochs(folders.control), default=0)
    if read_heartbeat(folders.control, newest) is not None and is_writer_alive(folders.control, newest):
        step = f"lockstep repair {folders.stream} --plan only checks; to repair, first: lockstep stop {folders.stream}"
        yield Obstacle("a writer is alive", f"epoch {newest} is writing: nothing is repaired while it does", step)
