"""Exported hours during an erasure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.features.export.dataset import find_folder, list_exported_hours, take_back_hour
from lockstep.operations.kept_rows import ErasedHours, KeptRows
from lockstep.operations.plan_frame import Obstacle
from lockstep.table.head import Head

EXPORTED = "exported hours hold its rows"
SHOWN_HOURS = 3


def find_exported_rows(erased: ErasedHours) -> KeptRows:
    """Find exported hours that hold rows of a session."""
    exported = _list_exported(erased)
    hours = sorted(exported & set(erased.hours))
    return KeptRows(tuple(_list_obstacles(hours)), tuple(_list_notes(erased.head, exported)))


def has_exported_rows(erased: ErasedHours) -> bool:
    """Whether an hour of the session is exported by now."""
    return not _list_exported(erased).isdisjoint(erased.hours)


def _list_exported(erased: ErasedHours) -> frozenset[str]:
    if erased.declared is None or erased.declared.export is None:
        return frozenset()
    return list_exported_hours(find_folder(erased.declared.export, erased.folders))


def _list_obstacles(hours: Sequence[str]) -> Iterator[Obstacle]:
    if hours:
        problem = f"{len(hours)} exported hours hold its rows ({', '.join(hours[:SHOWN_HOURS])})"
        step = "delete their folders from the export; the next export writes them again, without the session"
        yield Obstacle(EXPORTED, problem, step)


def _list_notes(head: Head, exported: frozenset[str]) -> Iterator[str]:
    if head.retention is not None and exported:
        yield f"exported hours before {head.retention.hour}, whose rows the table has dropped, are not examined"


def withdraw_exported(erased: ErasedHours) -> None:
    """Withdraw hours that an export published in the moment of the erasure's commit."""
    if erased.declared is None or erased.declared.export is None:
        return
    folder = find_folder(erased.declared.export, erased.folders)
    for hour in sorted(_list_exported(erased) & set(erased.hours)):
        take_back_hour(folder, hour)
