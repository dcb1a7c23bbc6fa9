"""A step of housekeeping that a feature adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.table.layout import StreamFolders


class CleanedStream(msgspec.Struct, frozen=True):
    """The stream of a housekeeping.

    Attributes:
        folders: Its folders.
        declared: Its declaration; None if it is unknown.
    """

    folders: StreamFolders
    declared: AnyStream | None = None


class CleanUpStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of housekeeping.

    Attributes:
        name: Its name, shown with the number of files.
        prepare: Runs before all steps; not for a plan.
        list_files: Lists the files to delete.
        finish: Runs after their deletion; not for a plan.
    """

    name: str
    prepare: Callable[[CleanedStream], object] | None = None
    list_files: Callable[[CleanedStream], Iterable[Path]] = lambda _: ()
    finish: Callable[[CleanedStream], object] | None = None
