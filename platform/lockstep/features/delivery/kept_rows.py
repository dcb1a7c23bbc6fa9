"""Delivered rows during an erasure and a retention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lockstep.declare.delivery import Delivery, FirstRows
from lockstep.declare.stream import AnyStream
from lockstep.features.delivery.changes import may_delete_sessions
from lockstep.features.delivery.deliver import list_deliveries
from lockstep.features.delivery.status import HALTS, read_source_position
from lockstep.model.commit_hour import find_current_hour, format_hour, parse_hour
from lockstep.operations.followers import judge_standing
from lockstep.operations.kept_rows import ErasedHours, KeptRows
from lockstep.operations.stream_table import open_table
from lockstep.table.delta_log import find_head_of_batch
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.live_files import LiveFiles


def find_delivered_rows(erased: ErasedHours) -> KeptRows:
    """Name the targets with rows that an erasure cannot reach: an operator erases them there."""
    declared = () if erased.declared is None else list_deliveries([erased.declared]).values()
    notes = list[str]()
    for each in declared:
        read = read_source_position(erased.folders.root, each.delivery.name, erased.folders.stream)
        if read is not None and read.table_id:
            where = (
                f"{each.delivery.target.address} has rows of batches up to {read.batch}, and undone rows if a halt was "
                f"accepted (delivery {each.delivery.name})"
            )
            is_able = may_delete_sessions(each.delivery)
            done = "its next run deletes those of the session" if is_able else "erase those of the session there"
            notes.append(f"{where}: {done}")
    return KeptRows(notes=tuple(notes))


def find_droppable_hours(stream: AnyStream, folders: StreamFolders) -> Callable[[], frozenset[str]] | None:
    """List the hours that retention may drop: no delivery needs their rows, or may hold them longer."""
    holding = [each for each in stream.deliveries if each.holds_rows is not None]
    return partial(_list_droppable, holding, folders) if holding else None


def _list_droppable(deliveries: list[Delivery], folders: StreamFolders) -> frozenset[str]:
    base = open_table(folders).base()
    limit = min(_find_first_held(each, folders, base.head) for each in deliveries)
    hours = {file.commit_hour for file in LiveFiles(folders.table).at(base.version)}
    return frozenset(hour for hour in hours if hour < limit)


def _find_first_held(delivery: Delivery, folders: StreamFolders, head: Head) -> str:
    """The first hour of which a delivery needs rows; no earlier than its `holds_rows` before the newest batch."""
    newest = min(head.hour, find_current_hour())
    if delivery.holds_rows is None or not newest:
        return newest
    oldest = format_hour(parse_hour(newest) - delivery.holds_rows)
    read = read_source_position(folders.root, delivery.name, folders.stream)
    if read is None or read.table_id != head.table_id:
        return newest if delivery.first_rows is FirstRows.NEW else oldest
    # Undone batches that were delivered may be newer than batches that count again and were not.
    complete = read.complete_batch if judge_standing(read, head) not in HALTS else None
    last = find_head_of_batch(folders.table, complete) if complete else None
    return oldest if last is None else max(oldest, last.hour)
