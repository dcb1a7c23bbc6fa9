"""Exports and housekeeping: leftovers of killed exports, and a limit of retention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lockstep.declare.stream import AnyStream
from lockstep.features.export.dataset import delete_leftovers, find_folder
from lockstep.features.export.export import list_proven_hours
from lockstep.operations.clean_up import CleanedStream, CleanUpStep
from lockstep.table.layout import StreamFolders


def _delete_leftovers(stream: CleanedStream) -> None:
    """Delete what killed exports left a day ago: the next export may be far away, or the stream exports no more."""
    export = None if stream.declared is None else stream.declared.export
    declared = [] if export is None else [find_folder(export, stream.folders)]
    for folder in {stream.folders.export, *declared}:
        delete_leftovers(folder)


LEFTOVERS = CleanUpStep(name="unfinished exports", finish=_delete_leftovers)


def find_droppable_hours(stream: AnyStream, folders: StreamFolders) -> Callable[[], frozenset[str]] | None:
    """List the hours that retention may drop: with an export, only exported ones."""
    if stream.export is None:
        return None
    return partial(list_proven_hours, stream.export, folders)
