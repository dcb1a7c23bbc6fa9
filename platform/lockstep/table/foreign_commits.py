"""Foreign commits to a stream's tables: detected by the entries on top of lockstep's newest entry.

Every commit of lockstep first checks whether lockstep wrote the version under it. So a foreign commit
stays on top, and is detected by the next write, compaction or start, until `lockstep repair` sets it aside. One that
only describes the table (see `lockstep.table.descriptions`) is built on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lockstep.errors import TableError
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.descriptions import find_reserved_changes


class ForeignCommit(TableError):
    """A foreign commit to a table of a stream.

    Attributes:
        table: Folder of the table.
        version: The first version that is not of lockstep.
        operation: Delta's name of the operation.
        author: The engine that wrote it.
    """

    def __init__(self, table: Path, version: int, operation: str, author: str, changes: str = "") -> None:
        detail = f" ({changes})" if changes else ""
        super().__init__(
            f"{table}: version {version} is {operation} by {author}{detail}, not a commit of lockstep; "
            "only lockstep writes this table",
            next_step=f"end the writer of version {version}; then: lockstep repair {table.parent.name}",
        )
        self.table = table
        self.version = version
        self.operation = operation
        self.author = author


class TableReplaced(TableError):
    """The folder of a table was moved, deleted or restored under a run that has it open.

    Attributes:
        table: Folder of the table.
    """

    def __init__(self, table: Path, problem: str) -> None:
        super().__init__(
            f"{table} is not what this run left there: it was moved, deleted or restored from a copy ({problem})",
            next_step="put the folder back, or set table_root to where it is; then start again: a start continues from "
            "the state of the table",
        )
        self.table = table


def find_foreign_commit(table: Path, version: int) -> ForeignCommit:
    """The error of a foreign version."""
    entry = delta_log.read_entry(table, version)
    if entry is None:
        return ForeignCommit(table, version, "an unreadable entry", "an unknown author", "")
    changes = ""
    if entry.operation in DESCRIBING:
        _, changes = next(_find_reserved_changes(table, version, version))
    return ForeignCommit(table, version, entry.operation, entry.author, changes)


DESCRIBING = frozenset({"SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})
"""Operations of which some are allowed: the error of another operation names its changes."""


def _find_reserved_changes(table: Path, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Versions with the changes that others may not make, up to the first with one; see `find_reserved_changes`."""
    # Once: a catalogue may have described the table a thousand times.
    description = delta_log.read_table_metadata(table, first - 1)
    for version in range(first, last + 1):
        try:
            entry = find_storage(table).read(delta_log.make_entry_path(table, version))
        except FileNotFoundError:
            yield version, "its entry is gone"
            return
        changes = find_reserved_changes(entry, description)
        yield version, changes
        if changes:
            return
        description = entry


def refresh(handle: DeltaTable, table: Path) -> None:
    """Bring a handle to the newest version.

    Raises:
        TableReplaced: Versions that it had read are gone.
    """
    try:
        delta_log.refresh_delta_table(handle)
    except DeltaError as error:
        raise TableReplaced(table, str(error).splitlines()[0]) from error
    if not find_storage(table).exists(table / "_delta_log"):
        raise TableReplaced(table, "there is no log")


def find_foreign_versions(table: Path, newest: int) -> list[int]:
    """The foreign versions on top of a log that are not built on, newest first; unreadable ones are not judged.

    Those that only describe the table are not among them, unless they follow one that is.
    """
    found: list[int] = []
    for version in range(newest, 0, -1):
        entry = delta_log.read_entry(table, version)
        # Each commit of ours checks the one below it, so foreign ones stay on top.
        if entry is None or entry.kind is not None:
            break
        found.append(version)
    if not found:
        return found
    allowed = {version for version, changes in _find_reserved_changes(table, found[-1], found[0]) if not changes}
    return [version for version in found if version not in allowed]


def refuse_foreign_since(table: Path, ours: int, newest: int) -> None:
    """Refuse a log in which a foreign or unreadable entry follows the newest one of ours.

    Raises:
        ForeignCommit: Names the first of them.
    """
    for version, changes in _find_reserved_changes(table, ours + 1, newest):
        if changes:
            raise find_foreign_commit(table, version)


def refuse_foreign(table: Path, newest: int) -> None:
    """Refuse a log with a foreign commit on top.

    Raises:
        ForeignCommit: Names the first of them.
    """
    if found := find_foreign_versions(table, newest):
        raise find_foreign_commit(table, found[-1])
