"""Dropped shadows, of which a killed deletion left files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.features.history.shadow import delete_dropped, list_dropped
from lockstep.operations.clean_up import CleanedStream, CleanUpStep
from lockstep.storage import find_storage


def _list_dropped_files(stream: CleanedStream) -> Iterator[Path]:
    """List the files of deleted shadows; after them their folders go."""
    for folder in list_dropped(stream.folders.root):
        yield from [folder / name for name, _ in find_storage(folder).walk_files(folder)]


def _delete_folders(stream: CleanedStream) -> None:
    delete_dropped(stream.folders.root)


DROPPED = CleanUpStep(name="dropped shadows", list_files=_list_dropped_files, finish=_delete_folders)
