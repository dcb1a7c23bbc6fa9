"""Housekeeping: deletes files that neither the stream, an active reader nor a rewind can need any more.

One value decides: the rewind floor in the table's head, the oldest batch to which a rewind may go. Files needed only
before it can go: entries and checkpoints of the log, data files that compaction replaced, state. Each step is planned
first, and is safe in parallel with a writer, readers, compaction and another housekeeping. Features prepare before all
deletions: an erasure ends.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.control.heartbeat import RUN_FILE
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.feature import load_parts
from lockstep.features.retention.messages import drop_old_messages, plan_quarantine_retention
from lockstep.features.retention.rows import drop_old_rows, plan_retention
from lockstep.features.retention.unreachable_state import find_unreachable_state, raise_floor
from lockstep.operations.clean_up import CleanedStream, CleanUpStep
from lockstep.operations.growth import DiskGrowth, read_growth, record_growth, take_sample
from lockstep.operations.plan_frame import Description, Labelled, Records, Unit
from lockstep.operations.stream_table import NoTable
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.checkpoint import is_due, write_checkpoint
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.delta_log import find_head_of_batch
from lockstep.table.head import NO_VERSION, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.side_files import REPLACED_SECONDS, list_message_tables
from lockstep.table.written_by import read_written_by

LOG = logging.getLogger("lockstep")

RECENT_SECONDS = 3600.0
"""A younger log checkpoint stays: a reader may have just found it. So does a younger draft of an entry."""
CHECKPOINTS_KEPT = 2
CHECKPOINTS_BETWEEN = 4
"""The newest checkpoints stay at any age, and some between the oldest needed one and these: entries are kept
back to a checkpoint; without any in between the oldest one would always be needed (seen after ten simulated days)."""
BEFORE_ALL = -1
EPOCHS_KEPT = 20
"""Heartbeat files of this many epochs stay, as a record of who wrote when."""
DELETED_AT_ONCE = 1_000
"""Files: an object store deletes so many by one request."""
DECLARED = "declared by the stream"
DEAD_SECONDS = 86_400.0
"""A run whose heartbeat file is older is dead: it writes it several times a second, and no clock is a day off."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result, or plan, of one housekeeping step.

    Attributes:
        step: Its name.
        files: Files deleted.
        bytes: Their bytes.
        problem: Error of the step; empty without one.
    """

    step: str
    files: int = 0
    bytes: int = 0
    problem: str = ""


class HousekeepingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result, or plan, of one housekeeping.

    Attributes:
        stream: Name of the stream.
        planned_only: Nothing was deleted.
        rewind_floor: Oldest batch to which a rewind may go.
        steps: In order; a failed step does not stop the next.
        growth: Files and bytes of the stream after it, with a forecast; None if they could not be measured.
    """

    stream: str
    planned_only: bool
    rewind_floor: int
    steps: tuple[StepResult, ...]
    growth: DiskGrowth | None = None

    def describe(self) -> Description:
        """Return its description."""
        files = "files to delete" if self.planned_only else "files deleted"
        size = "bytes to delete" if self.planned_only else "bytes deleted"
        growth_facts = () if self.growth is None else self.growth.list_facts()
        facts = (
            Labelled("rewind floor", self.rewind_floor, note="the earliest batch to which a rewind can go back"),
            Labelled(files, sum(step.files for step in self.steps)),
            Labelled(size, self.bytes, Unit.BYTES),
            *growth_facts,
        )
        kinds = () if self.growth is None else self.growth.kinds
        growth = Records.of("growth", kinds, "kind files bytes bytes_a_day bytes_in_30_days")
        records = (Records.of("steps", self.steps, "step files bytes"), growth)
        return Description(title=f"{self.stream}: housekeeping", facts=facts, records=records)

    @property
    def bytes(self) -> int:
        """Bytes of all steps."""
        return sum(step.bytes for step in self.steps)

    @property
    def problems(self) -> tuple[str, ...]:
        """Errors, step by step."""
        return tuple(f"{step.step}: {step.problem}" for step in self.steps if step.problem)


class HousekeepingFailed(LockstepError):
    """Some steps failed; the others are done.

    Attributes:
        result: Result of all steps.
    """

    def __init__(self, result: HousekeepingResult) -> None:
        super().__init__(
            f"housekeeping of {result.stream}: {'; '.join(result.problems)}",
            next_step=f"fix the cause, then: lockstep housekeeping {result.stream}",
        )
        self.result = result


def run_housekeeping(
    folders: StreamFolders, *, retention_seconds: float, stream: AnyStream | None = None, plan_only: bool = False
) -> HousekeepingResult:
    """Delete files that nothing can need any more.

    1. Drop rows, and messages of quarantine and late table, that are older than the stream's retention of each, if it
       declares one; raise the rewind floor in the head to the oldest batch of the setting.
    2. Delete data files that are neither live, nor live at the floor, nor young enough to be in flight.
    3. Write log checkpoints that are due; delete log entries and checkpoints before the floor.
    4. Delete unreachable state files.
    5. Delete heartbeat and request files of old epochs and dead runs, and drafts of killed processes.
    6. Run the steps that features add; their preparations ran before step 2.
    7. Measure the remaining files, for `lockstep status` and the asset.

    Args:
        folders: Folders of the stream.
        retention_seconds: How far back a rewind, a slow reader and time travel may go.
        stream: The declaration, which may have retentions; without one rows and messages stay.
        plan_only: Report what would be deleted, as of the current floor; change nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: The table does not match its head; nothing was deleted.
        HousekeepingFailed: A step failed, after the others are done.
    """
    dropped = tuple(_drop_past_retention(folders, stream, plan_only=plan_only))  # 1
    head = raise_floor(folders, retention_seconds, plan_only=plan_only)
    pinned = frozenset(savepoint.version for savepoint in head.savepoints if savepoint.version != NO_VERSION)
    needed_from = partial(_needed_from, folders.table, head, frozenset() if plan_only else pinned)
    sides = [folders.ledger, *list_message_tables(folders)]
    added: list[CleanUpStep] = list(load_parts("clean_up"))
    cleaned = CleanedStream(folders, stream)
    due: dict[str, Callable[[], Iterable[Path]]] = {
        "replaced data files": partial(find_replaced_data_files, folders, head),  # 2
        "log of table": partial(_due_entries, folders.table, needed_from, pinned),  # 3
        **{f"log of {side.name}": partial(_due_entries, side, partial(_recent, side)) for side in sides},
        "state": partial(find_unreachable_state, folders, head),  # 4
        "control files": partial(_old_control_files, folders, head),  # 5
        "unfinished files": partial(_unfinished_files, folders),
        **{step.name: partial(step.list_files, cleaned) for step in added},  # 6
    }
    after = {step.name: partial(step.finish, cleaned) for step in added if step.finish is not None}
    if not plan_only:
        # Steps that prepare come first: an erasure must be complete before the files that it replaced are deleted.
        prepare = {step.name: partial(_prepare, step, cleaned) for step in added if step.prepare is not None}
        due = {
            **prepare,
            "log checkpoints": partial(_write_checkpoints, (folders.table, *sides)),
            "log checkpoints of savepoints": partial(_pin_versions, folders.table, pinned),
            **{name: find for name, find in due.items() if name not in prepare},
        }
    steps = [_attempt(name, files, after.get(name), plan_only=plan_only) for name, files in due.items()]
    result = HousekeepingResult(
        stream=folders.stream,
        planned_only=plan_only,
        rewind_floor=head.rewind_floor,
        steps=(*dropped, *steps),
    )
    result = _with_growth(folders, result)  # 7
    if result.problems:
        raise HousekeepingFailed(result)
    return result


def _with_growth(folders: StreamFolders, result: HousekeepingResult) -> HousekeepingResult:
    if result.planned_only:
        return msgspec.structs.replace(result, growth=read_growth(folders))
    try:
        return msgspec.structs.replace(result, growth=record_growth(folders, take_sample(folders)))
    except (DeltaError, OSError) as error:
        LOG.warning("housekeeping: growth of %s is not measured", folders.stream, exc_info=True)
        step = StepResult(step="growth", problem=str(error).splitlines()[0])
        return msgspec.structs.replace(result, steps=(*result.steps, step))


def _drop_past_retention(folders: StreamFolders, stream: AnyStream | None, *, plan_only: bool) -> Iterator[StepResult]:
    """Drop rows and messages past their retention; a later run of housekeeping or compaction deletes the files."""
    if stream is None:
        return
    if stream.retention is not None:
        yield _try_to_drop("rows past retention", partial(_drop_rows, folders, stream, stream.retention), plan_only)
    if stream.quarantine_retention is not None:
        drop = partial(_drop_messages, folders, stream.quarantine_retention)
        yield _try_to_drop("messages past retention", drop, plan_only)


def _try_to_drop(step: str, drop: Callable[[bool], tuple[int, int]], plan_only: bool) -> StepResult:  # noqa: FBT001  # passed on
    """One retention; `drop` returns files and bytes."""
    try:
        files, size = drop(plan_only)
    except NoTable:
        raise
    except (LockstepError, DeltaError, OSError) as error:
        LOG.warning("housekeeping: %s failed", step, exc_info=True)
        return StepResult(step=step, problem=str(error).splitlines()[0])
    return StepResult(step=step, files=files, bytes=size)


def _drop_rows(folders: StreamFolders, stream: AnyStream, keep: timedelta, plan_only: bool) -> tuple[int, int]:  # noqa: FBT001  # passed on
    """Drop rows past the retention, and exported if that is declared."""
    find_exported = _find_limit(folders, stream)
    if plan_only:
        exported = None if find_exported is None else find_exported()
        plan = plan_retention(folders, keep, exported=exported)
    else:
        plan = drop_old_rows(folders, keep, cause=DECLARED, find_exported=find_exported).plan
    return len(plan.files), plan.bytes


def _find_limit(folders: StreamFolders, stream: AnyStream) -> Callable[[], frozenset[str]] | None:
    """Combine the limits of features: lists the hours that all of them let retention drop; None without a limit."""
    declared = [find(stream, folders) for find in load_parts("drop_limits")]
    limits = [limit for limit in declared if limit is not None]
    if not limits:
        return None
    return partial(_list_common_hours, limits)


def _list_common_hours(limits: Sequence[Callable[[], frozenset[str]]]) -> frozenset[str]:
    return frozenset.intersection(*(limit() for limit in limits))


def _drop_messages(folders: StreamFolders, keep: timedelta, plan_only: bool) -> tuple[int, int]:  # noqa: FBT001  # passed on
    """Drop messages of quarantine and late table past their retention."""
    if plan_only:
        plan = plan_quarantine_retention(folders, keep)
    else:
        plan = drop_old_messages(folders, keep, cause=DECLARED).plan
    return plan.files, plan.bytes


def find_replaced_data_files(folders: StreamFolders, head: Head) -> list[Path]:
    """Data files that no version from the rewind floor on references, and that no writer can still reference.

    Likewise for the versions that rewinds since the floor made, and for those of savepoints.

    The name of a batch's file carries the batch number: up to the floor's batch it is referenced by the floor's
    version, or by none from there on. Files of compaction are judged by age: a commit refuses those older than
    `OLDEST_FILE_SECONDS`, so files that commits after the floor added are younger than the floor less that time.
    Nor is any file committed that was written before the newest erasure of a session, by the storage's clock: a
    compaction that was planned before it is lost. Nothing is found while the log does not go back to the floor.
    """
    floor = find_head_of_batch(folders.table, head.rewind_floor)
    if floor is None or not floor.batch:
        return []
    floor_at = delta_log.find_entry_time(folders.table, floor.batch_version)
    # A clock of the storage that is ahead must not make files old.
    young = max(min(floor_at, time.time()) - OLDEST_FILE_SECONDS, _find_erasure_time(folders.table, head))
    needed = (None, floor.batch_version, *head.kept_versions.values())
    named = set[str]()
    for version in needed:
        named |= _live(delta_log.open_delta_table(folders.table, version=version))
    unnamed: list[tuple[str, float]] = []
    for name, status in find_storage(folders.table).walk_files(folders.table):
        is_data = name.startswith("commit_hour=") and name.endswith(".parquet")
        if is_data and name not in named:
            unnamed.append((name, status.modified_at))
    unnamed.sort()
    return [folders.table / name for name, modified_at in unnamed if _is_before(name, modified_at, floor, young)]


def _find_erasure_time(table: Path, head: Head) -> float:
    """When the newest erasure was committed, while the log has its entry; else 0."""
    if head.erasure is None or head.rewind_floor < head.erasure.batch:
        return 0.0
    try:
        return delta_log.find_entry_time(table, head.erasure.version)
    except FileNotFoundError:
        return 0.0


def _prepare(step: CleanUpStep, stream: CleanedStream) -> Iterable[Path]:
    """Run the first part of a step, then list its files."""
    if step.prepare is not None:
        step.prepare(stream)
    return step.list_files(stream)


def _is_before(name: str, modified_at: float, floor: Head, young: float) -> bool:
    by = read_written_by(name.rpartition("/")[2])
    if by is None:
        return modified_at < young
    return by.is_over(floor)


def _live(table: DeltaTable) -> set[str]:
    return set(map(str, pa.table(table.get_add_actions()).column("path").to_pylist()))


def _write_checkpoints(tables: Iterable[Path]) -> list[Path]:
    """Write due log checkpoints: the writer does so as it runs, but a stopped stream may lack its last one."""
    for table in tables:
        versions = delta_log.list_versions(table)
        if versions and is_due(table, versions[-1]):
            write_checkpoint(table)
    return []


def _pin_versions(table: Path, versions: Iterable[int]) -> list[Path]:
    """Make versions loadable by themselves, before the entries around them are deleted."""
    made = delta_log.list_checkpoints(table)
    for version in versions:
        if version not in made:
            write_checkpoint(table, version)
    return []


def _needed_from(table: Path, head: Head, pinned: frozenset[int]) -> int:
    """The oldest version that a rewind may load, or whose entry names a ledger file needed for positions.

    Of the pinned ones only those that could not be given a log checkpoint, as on a full disk: entries load them.
    """
    heads = [find_head_of_batch(table, batch) for batch in (head.rewind_floor, head.full_ledger_batch)]
    unpinned = pinned - delta_log.list_checkpoints(table).keys()
    # An entry that is not there cannot tell its version: all entries stay.
    needed = [BEFORE_ALL if past is None else past.batch_version for past in heads]
    return min(*needed, *unpinned)


def _recent(side: Path) -> int:
    """The oldest version of a side table that an active reader may load: the newest one holds its rows as well."""
    since = time.time() - REPLACED_SECONDS
    versions = delta_log.list_versions(side)
    first = bisect_left(versions, since, key=lambda version: _modified(delta_log.make_entry_path(side, version)))
    return versions[min(first, len(versions) - 1)]


def _due_entries(table: Path, needed_from: Callable[[], int], pinned: frozenset[int] = frozenset()) -> Iterator[Path]:
    """Log entries and checkpoints that are not needed to load a pinned version, `needed_from()` or any later version.

    Drafts of entries, which killed processes left, too.

    A version is loaded from the newest checkpoint at or before it and the entries after that. In the first days of a
    table there is none at or before the oldest needed version: all entries stay, and few of the checkpoints.
    """
    recent = time.time() - RECENT_SECONDS
    for draft in delta_log.list_drafts(table):
        if _modified(draft) < recent:
            yield draft
    made = delta_log.list_checkpoints(table)
    oldest = needed_from()
    # Without a checkpoint each version needs all entries.
    if not made:
        return
    base = max((version for version in made if version <= oldest), default=BEFORE_ALL)
    for version in delta_log.list_versions(table):
        if version < base and version not in pinned:
            yield delta_log.make_entry_path(table, version)
    for version in made.keys() - _needed_checkpoints(sorted(made), base) - pinned:
        # Of several parts all go or none: a reader loads them together.
        if max(map(_modified, made[version])) < recent:
            yield from made[version]


def _needed_checkpoints(versions: Sequence[int], base: int) -> set[int]:
    """The base, the newest ones, and some in between, one of which will be the next base. Pure.

    Args:
        versions: Versions with a checkpoint, in order; at least one.
        base: The oldest one that is needed; `BEFORE_ALL` while every entry is.
    """
    distance = (versions[-1] - base) // CHECKPOINTS_BETWEEN
    last = base
    later = [version for version in versions if version > base]
    needed = {base, *later[-CHECKPOINTS_KEPT:]}
    for version, after in pairwise(later):
        if after - last > distance:
            needed.add(version)
            last = version
    return needed


def _old_control_files(folders: StreamFolders, head: Head) -> Iterator[Path]:
    """Heartbeat and request files of old epochs, named <what>-<epoch>.json, and of runs that were killed long ago."""
    storage = find_storage(folders.control)
    dead_before = time.time() - DEAD_SECONDS
    for path in storage.find_files(folders.control, "*-*.json"):
        epoch = path.stem.rpartition("-")[2]
        if epoch.isdigit() and int(epoch) < head.epoch - EPOCHS_KEPT:
            yield path
    for path in storage.find_files(folders.control, f"*{RUN_FILE}"):
        if _modified(path) < dead_before:
            yield path


def _unfinished_files(folders: StreamFolders) -> Iterator[Path]:
    """Drafts of small files that killed processes left."""
    storage = find_storage(folders.root)
    recent = time.time() - RECENT_SECONDS
    drafts = [*storage.find_files(folders.control, "*.tmp"), *storage.find_files(folders.quality, "*.tmp")]
    for path in drafts:
        if _modified(path) < recent:
            yield path


def _attempt(
    step: str, due: Callable[[], Iterable[Path]], after: Callable[[], object] | None, *, plan_only: bool
) -> StepResult:
    """Run a step, or plan it; an error is reported and does not stop the next step.

    Args:
        step: Its name.
        due: Finds the files to delete.
        after: The action after them.
        plan_only: Change nothing.
    """
    files = size = 0
    try:
        due_files = iter(due())
        while paths := list(islice(due_files, DELETED_AT_ONCE)):
            # Files that another housekeeping has deleted first have no size, and do not count.
            sizes = [file_size for file_size in _delete(paths, plan_only=plan_only) if file_size is not None]
            files += len(sizes)
            size += sum(sizes)
        if after is not None and not plan_only:
            after()
    except (LockstepError, DeltaError, OSError) as error:
        LOG.warning("housekeeping: %s failed", step, exc_info=True)
        return StepResult(step=step, files=files, bytes=size, problem=str(error).splitlines()[0])
    return StepResult(step=step, files=files, bytes=size)


def _delete(paths: Sequence[Path], *, plan_only: bool) -> Sequence[int | None]:
    """Delete some files, or only measure them; the bytes of each, None if another housekeeping has deleted it."""
    storage = find_storage(paths[0])
    if plan_only:
        return [None if status is None else status.size for status in storage.get_statuses(paths)]
    return storage.delete_files(paths)


def _modified(path: Path) -> float:
    status = find_storage(path).get_status(path)
    return 0.0 if status is None else status.modified_at
