"""Shadows during an erasure."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.features.history.shadow import PIN, ShadowsFound, delete_dropped, make_pin, read_shadows
from lockstep.operations.kept_rows import ErasedHours, KeptRows
from lockstep.operations.plan_frame import Obstacle
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

SHADOWS = "shadows keep its rows"


def find_shadowed_rows(erased: ErasedHours) -> KeptRows:
    """Find shadows, which keep state of the stream or let its messages be read again."""
    name = erased.head.stream
    shadows = read_shadows({name}, erased.folders.root)
    problems = shadows.unread.values()
    notes = (f"a table that cannot be read is taken for no shadow of {name}: {problem}" for problem in problems)
    return KeptRows(tuple(_list_obstacles(shadows, erased.head)), tuple(notes))


def _list_obstacles(found: ShadowsFound, head: Head) -> Iterator[Obstacle]:
    shadows = _name_shadows(found, head)
    if shadows:
        problem = f"shadows keep its state, or let its messages be read again: {', '.join(shadows)}"
        step = f"lockstep shadow drop {head.stream} --name {shadows[0]}; or, if only its savepoint is left: "
        delete = f"lockstep savepoint delete {head.stream} {make_pin(shadows[0])}"
        yield Obstacle(SHADOWS, problem, step + delete)


def _name_shadows(found: ShadowsFound, head: Head) -> list[str]:
    """Shadows by their tables, and by their savepoints: a shadow that is being started has no table yet."""
    tables = {each.name for each in found.shadows}
    names = {each.name for each in head.savepoints if each.name.startswith(PIN)}
    pins = names - set(map(make_pin, tables))
    return sorted(tables | {name.removeprefix(PIN) for name in pins})


def forget_dropped(folders: StreamFolders) -> None:
    """Delete the remains of dropped shadows."""
    delete_dropped(folders.root)
