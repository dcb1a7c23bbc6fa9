"""Exported hours whose batches a rewind or a promotion undoes: they are withdrawn, or refuse it.

Each manifest has the batches that counted when its hour was written. So an hour is judged by its manifest and the head
alone, also an hour that an export published in the moment of a rewind and that a kill left there.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import timedelta
from functools import partial
from pathlib import Path

from lockstep.declare.options import OnRewind
from lockstep.features.export.dataset import (
    find_folder,
    is_undone,
    list_batches,
    list_exported_hours,
    list_half_withdrawn_hours,
    read_source,
    take_back_hour,
)
from lockstep.model.commit_hour import format_hour, parse_hour
from lockstep.operations.kept_rows import KeptRows, UndoneBatches
from lockstep.operations.plan_frame import Obstacle
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.commit import Base
from lockstep.table.head import Head

UNDONE = "exported hours hold its batches"
"""Kind of the obstacle."""


def find_last_batch(table: Path, hour: str) -> int | None:
    """The last batch of an hour, or of the hours before it; None if the log does not go back to it."""
    versions = delta_log.list_versions(table)
    after = bisect_right(versions, hour, key=partial(_read_hour, table))
    if not after:
        return None
    head = delta_log.read_head(table, versions[after - 1])
    return None if head is None else head.batch


def find_last_closed_hour(head: Head) -> str:
    """The newest hour into which nothing can be committed any more; empty before the first batch. Pure."""
    if not head.hour:
        return ""
    return max(head.closed_hour, format_hour(parse_hour(head.hour) - timedelta(hours=1)))


def _read_hour(table: Path, version: int) -> str:
    head = delta_log.read_head(table, version)
    return "" if head is None else head.hour


def find_undone_hours(folder: Path, base: Base, table: Path, floor_hour: str) -> tuple[str, ...]:
    """List the exported hours that a rewind or a promotion has undone, or that are half withdrawn; newest first.

    An export that is killed may leave an hour that was undone in the moment of its publication. So hours from the
    rewind floor on are always judged, and all hours if the newest export saw other batches.

    Args:
        folder: The dataset.
        base: The table.
        table: Its folder.
        floor_hour: Hour of the batch at the rewind floor; empty if it is unknown.

    Raises:
        ExportMismatch: The table is an older copy that was restored, or a manifest cannot be read.
    """
    hours = list_exported_hours(folder)
    if not hours:
        return ()
    source = read_source(folder, base, table)
    is_same = list_batches(base.head, source.below_batch) == source.batches
    judged = {hour for hour in hours if hour >= floor_hour} if is_same else hours
    undone = _choose_undone(folder, judged, base.head)
    return tuple(sorted({*undone, *list_half_withdrawn_hours(folder)}, reverse=True))


def _choose_undone(folder: Path, hours: frozenset[str] | set[str], head: Head) -> tuple[str, ...]:
    """Those of some exported hours that hold other batches than a head counts, newest first.

    Rows that retention has dropped from the table are in the dataset alone: their hours stay.
    """
    dropped = "" if head.retention is None else head.retention.hour
    judged = sorted((hour for hour in hours if hour >= dropped), reverse=True)
    undone = find_storage(folder).map_files(partial(is_undone, folder, head=head), judged)
    return tuple(hour for hour, is_hour_undone in zip(judged, undone, strict=True) if is_hour_undone)


def withdraw_undone(folder: Path, hours: tuple[str, ...], head: Head) -> tuple[str, ...]:
    """Withdraw exported hours that were undone, in their order; returns those that still were.

    Another export may have withdrawn an hour since, and written it again.
    """
    return tuple(hour for hour in hours if take_back_hour(folder, hour, partial(is_undone, folder, hour, head)))


def find_undone_rows(undone: UndoneBatches) -> KeptRows:
    """Find the exported hours that a rewind or a promotion would undo."""
    if undone.declared is None or undone.declared.export is None:
        return KeptRows()
    export = undone.declared.export
    # Hours that wait for the rewind floor hold no batch that can be undone.
    if export.on_rewind is OnRewind.WAIT:
        return KeptRows()
    folder = find_folder(export, undone.folders)
    hours = _choose_undone(folder, list_exported_hours(folder), undone.head)
    if not hours:
        return KeptRows()
    extent = f"{len(hours)} exported hours, from {hours[-1]} to {hours[0]}, hold batches that would be undone"
    if export.on_rewind is OnRewind.REWRITE:
        return KeptRows(notes=(f"{extent}: the next export withdraws them; their rows return with later hours",))
    step = "go back to a later batch; or declare Export(on_rewind=OnRewind.REWRITE), which writes these hours again"
    return KeptRows((Obstacle(UNDONE, extent, step),))
