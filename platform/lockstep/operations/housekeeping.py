"""Housekeeping: deletes what neither the stream, a reader under way nor a rewind can need any more.

One quantity decides: the rewind floor in the table's head, the oldest batch that a rewind may go back to. Whatever is
needed only before it can go: entries and checkpoints of the log, data files that compaction replaced, state. Each step
is planned first, stands by itself, and is safe beside a writer, readers, compaction and another housekeeping.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.compaction.ledger_files import REPLACED_SECONDS
from lockstep.errors import LockstepError
from lockstep.operations.state_gc import find_unreachable_state, raise_floor
from lockstep.table import delta_log
from lockstep.table.checkpoint import is_due, write_checkpoint
from lockstep.table.commit import OLDEST_FILE_SECONDS
from lockstep.table.delta_log import Head, find_head_of_batch
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import delete_file
from lockstep.table.written_by import read_written_by

LOG = logging.getLogger("lockstep")

RECENT_SECONDS = 3600.0
"""A log checkpoint so young stays: a reader may have found it a moment ago."""
CHECKPOINTS_KEPT, CHECKPOINTS_BETWEEN = 2, 4
"""The newest checkpoints stay whatever their age, and some between the oldest that is needed and these: entries go up
to a checkpoint, so without any in between the oldest one would be needed for ever (seen after ten simulated days)."""
EPOCHS_KEPT = 20
"""Liveness files of so many epochs stay, for people who ask who wrote when."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of housekeeping did, or would do.

    Attributes:
        step: Its name.
        files: Files deleted.
        bytes: Their bytes.
        problem: Why the step failed; empty when it did not.
    """

    step: str
    files: int = 0
    bytes: int = 0
    problem: str = ""


class HousekeepingResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one housekeeping did, or would do.

    Attributes:
        stream: Name of the stream.
        planned_only: Nothing was deleted.
        rewind_floor: Oldest batch that a rewind may go back to.
        steps: One after another; a failed step does not keep the next from its work.
    """

    stream: str
    planned_only: bool
    rewind_floor: int
    steps: tuple[StepResult, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What failed, step by step."""
        return tuple(f"{step.step}: {step.problem}" for step in self.steps if step.problem)


class HousekeepingFailed(LockstepError):
    """Some steps failed; the others are done.

    Attributes:
        result: What was done.
    """

    def __init__(self, result: HousekeepingResult) -> None:
        super().__init__(
            f"housekeeping of {result.stream}: {'; '.join(result.problems)}",
            next_step=f"fix the cause, then: lockstep housekeeping {result.stream}",
        )
        self.result = result


def run_housekeeping(
    folders: StreamFolders, *, retention_seconds: float, plan_only: bool = False
) -> HousekeepingResult:
    """Delete what nothing can need any more.

    1. Raise the rewind floor in the head to the oldest batch of the retention.
    2. Write log checkpoints that are due; delete log entries and checkpoints before the floor.
    3. Delete data files that are neither live, nor live at the floor, nor young enough to be in flight.
    4. Delete unreachable state files.
    5. Delete liveness and request files of old epochs.

    Args:
        folders: Where the stream lies.
        retention_seconds: How far back a rewind, a slow reader and time travel may go.
        plan_only: Say what would be deleted, as of the floor that there is; change nothing.

    Raises:
        NoTable: The stream has never run.
        TableError: The table is not as its head says; nothing was deleted.
        HousekeepingFailed: A step failed, after the others are done.
    """
    head = raise_floor(folders, retention_seconds, plan_only=plan_only)  # 1
    sides = [folder for folder in (folders.ledger, folders.quarantine, folders.late) if delta_log.has_log(folder)]
    due: dict[str, Callable[[], Iterable[Path]]] = {
        "log of table": partial(_due_entries, folders.table, partial(_needed_from, folders.table, head)),  # 2
        **{f"log of {side.name}": partial(_due_entries, side, partial(_recent, side)) for side in sides},
        "replaced data files": partial(find_replaced_data_files, folders, head),  # 3
        "state": partial(find_unreachable_state, folders, head),  # 4
        "control files": partial(_old_control_files, folders, head),  # 5
    }
    if not plan_only:
        due = {"log checkpoints": partial(_write_checkpoints, (folders.table, *sides)), **due}
    result = HousekeepingResult(
        stream=folders.stream,
        planned_only=plan_only,
        rewind_floor=head.rewind_floor,
        steps=tuple(_attempt(step, files, plan_only=plan_only) for step, files in due.items()),
    )
    if result.problems:
        raise HousekeepingFailed(result)
    return result


def find_replaced_data_files(folders: StreamFolders, head: Head) -> list[Path]:
    """Data files that no version from the rewind floor on names, and that no writer can still name.

    What a batch wrote says so in its name: up to that of the floor it is named by the floor's version, or by none from
    there on. What compaction wrote is told by its age: a commit refuses files of it older than `OLDEST_FILE_SECONDS`,
    so what the commits after the floor added is younger than the floor less that time. Nothing is found while the log
    does not go back to the floor.
    """
    floor = find_head_of_batch(folders.table, head.rewind_floor)
    if floor is None or not floor.batch:
        return []
    floor_at = delta_log.make_entry_path(folders.table, floor.batch_version).stat().st_mtime
    young = min(floor_at, time.time()) - OLDEST_FILE_SECONDS
    named = _live(DeltaTable(folders.table)) | _live(DeltaTable(folders.table, version=floor.batch_version))
    found = sorted(folders.table.glob("commit_hour=*/*.parquet"))
    unnamed = (path for path in found if str(path.relative_to(folders.table)) not in named)
    return [path for path in unnamed if _is_before(path, floor, young)]


def _is_before(path: Path, floor: Head, young: float) -> bool:
    by = read_written_by(path.name)
    return by.is_over(floor) if by is not None else _modified(path) < young


def _live(table: DeltaTable) -> set[str]:
    return set(map(str, pa.table(table.get_add_actions()).column("path").to_pylist()))


def _write_checkpoints(tables: Iterable[Path]) -> list[Path]:
    """The writer writes them as it goes; a stream that was stopped may have left its last one out."""
    for table in tables:
        versions = delta_log.list_versions(table)
        if versions and is_due(table, versions[-1]):
            write_checkpoint(table)
    return []


def _needed_from(table: Path, head: Head) -> int:
    """The oldest version that a rewind may load, or whose entry names a ledger file that positions are read from."""
    needed = [find_head_of_batch(table, batch) for batch in (head.rewind_floor, head.full_ledger_batch)]
    return min(-1 if at is None else at.batch_version for at in needed)


def _recent(side: Path) -> int:
    """The oldest version of a side table that a reader under way may load: its rows are in the newest as well."""
    since, versions = time.time() - REPLACED_SECONDS, delta_log.list_versions(side)
    recent = (version for version in versions if _modified(delta_log.make_entry_path(side, version)) >= since)
    return next(recent, versions[-1])


def _due_entries(table: Path, needed_from: Callable[[], int]) -> Iterator[Path]:
    """Log entries and checkpoints that are not needed to load the version `needed_from()` or any later one.

    A version is loaded from the newest checkpoint at or before it and the entries after that.
    """
    made, oldest = delta_log.list_checkpoints(table), needed_from()
    base = max((version for version in made if version <= oldest), default=None)
    if base is None:
        return
    for version in delta_log.list_versions(table):
        if version < base:
            yield delta_log.make_entry_path(table, version)
    recent = time.time() - RECENT_SECONDS
    for version in made.keys() - _needed_checkpoints(sorted(made), base):
        if max(map(_modified, made[version])) < recent:
            yield from made[version]


def _needed_checkpoints(versions: Sequence[int], base: int) -> set[int]:
    """The base, the newest ones, and some in between, one of which will be the next base. Pure."""
    distance, last = (versions[-1] - base) // CHECKPOINTS_BETWEEN, base
    needed = {base, *versions[-CHECKPOINTS_KEPT:]}
    for version, after in pairwise(version for version in versions if version > base):
        if after - last > distance:
            needed.add(version)
            last = version
    return needed


def _old_control_files(folders: StreamFolders, head: Head) -> Iterator[Path]:
    """Signs of life and requests of epochs long gone; files are named <what>-<epoch>.json."""
    for path in sorted(folders.control.glob("*-*.json")):
        epoch = path.stem.rpartition("-")[2]
        if epoch.isdigit() and int(epoch) < head.epoch - EPOCHS_KEPT:
            yield path


def _attempt(step: str, due: Callable[[], Iterable[Path]], *, plan_only: bool) -> StepResult:
    """Do a step, or say what it would do; what fails is told and does not keep the next step from its work."""
    files = size = 0
    try:
        for path in due():
            found = _size(path) if plan_only else delete_file(path)
            files, size = files + (found is not None), size + (found or 0)
    except (LockstepError, DeltaError, OSError) as error:
        LOG.warning("housekeeping: %s failed", step, exc_info=True)
        return StepResult(step=step, files=files, bytes=size, problem=str(error).splitlines()[0])
    return StepResult(step=step, files=files, bytes=size)


def _size(path: Path) -> int | None:
    """Bytes of a file; None where another housekeeping was faster."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
