"""Copies of rows outside of a stream's tables, of which an erasure, a rewind or a promotion must know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.feature import load_parts
from lockstep.operations.plan_frame import Obstacle, Refused
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders


class ErasedHours(msgspec.Struct, frozen=True):
    """The rows that an erasure concerns.

    Attributes:
        folders: Folders of the stream.
        declared: Its declaration; None if it is unknown.
        head: The head of its table.
        hours: Commit hours of the rows, "YYYY-MM-DDTHH" UTC.
    """

    folders: StreamFolders
    declared: AnyStream | None
    head: Head
    hours: Sequence[str]


class KeptRows(msgspec.Struct, frozen=True):
    """The copies that features keep.

    Attributes:
        obstacles: Copies that an erasure would leave.
        notes: Copies that could not be judged.
    """

    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()


class UndoneBatches(msgspec.Struct, frozen=True):
    """The batches that a rewind or a promotion undoes.

    Attributes:
        folders: Folders of the stream.
        declared: Its declaration; None if it is unknown.
        head: The head of its table with the lineage afterwards.
    """

    folders: StreamFolders
    declared: AnyStream | None
    head: Head


def find_undone_copies(undone: UndoneBatches) -> KeptRows:
    """Find copies of rows that a rewind or a promotion undoes."""
    return _join(find(undone) for find in load_parts("undone_rows"))


def refuse_undone_copies(undone: UndoneBatches, plan: str) -> None:
    """Refuse a rewind or a promotion that a copy of undone rows forbids, also a copy that appeared since its plan.

    Raises:
        Refused: Names every obstacle.
    """
    obstacles = find_undone_copies(undone).obstacles
    if obstacles:
        raise Refused(undone.folders.stream, plan, obstacles)


def find_kept_rows(erased: ErasedHours) -> KeptRows:
    """Find copies of the rows of some commit hours."""
    return _join(find(erased) for find in load_parts("kept_rows"))


def _join(found: Iterable[KeptRows]) -> KeptRows:
    obstacles = list[Obstacle]()
    notes = list[str]()
    for kept in found:
        obstacles += kept.obstacles
        notes += kept.notes
    return KeptRows(tuple(obstacles), tuple(notes))


def has_new_copies(erased: ErasedHours) -> bool:
    """Whether copies have appeared since the plan of an erasure; a new shadow changes the head instead."""
    return any(has_copies(erased) for has_copies in load_parts("copied_since"))


def withdraw_copies(erased: ErasedHours) -> None:
    """Withdraw copies of commit hours that appeared while an erasure was committed."""
    for withdraw in load_parts("withdrawal"):
        withdraw(erased)


def forget_sessions(folders: StreamFolders) -> None:
    """Make all features forget the sessions of a stream, after an erasure."""
    for forget in load_parts("forgetting"):
        forget(folders)
