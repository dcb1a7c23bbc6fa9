"""A stream appears whole and disappears whole: it is restored, imported, or deleted.

A stream that was written whole under another name is renamed: readers see nothing before, and all of it after.

In a file system by one rename. An object store has none, so there the objects are copied:

1. If the place is empty, create `incoming` in the folder of the stream: no run starts while it is there, and of two
   copies one succeeds.
2. Check that no run has created a table meanwhile; a run that does so later checks for `incoming` before it claims.
3. Copy the objects; those that let a reader find the output table last, so it is never seen in part.
4. Delete `incoming`.

A copy that was killed leaves `incoming`: an operator deletes the copied files, and repeats the command.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.addresses import is_in_object_store
from lockstep.storage import create_owned, find_storage
from lockstep.table import delta_log
from lockstep.table.create import INCOMING, INCOMING_STEP, is_incoming
from lockstep.table.layout import StreamFolders

NOTICED = 2
"""From this rank on: without these objects a reader finds no table."""
FIRST_ENTRY = delta_log.make_entry_path(Path(), 0).name
LOG = "_delta_log"


@contextmanager
def open_draft(folders: StreamFolders, mark: str) -> Iterator[StreamFolders]:
    """Folders below the table root in which a stream is written; after the block they are deleted.

    So are those that killed ones have left. Of one that still runs, too: it is slower, and finds the stream there.

    Args:
        folders: Folders of the stream.
        mark: Suffix of the draft's name after that of the stream.
    """
    storage = find_storage(folders.root)
    begin = f"{folders.stream}{mark}"
    drafted = StreamFolders(folders.stream, folders.root / f"{begin}{uuid.uuid4().hex}")
    try:
        yield drafted
    finally:
        storage.delete_folder(drafted.root)
    with suppress(OSError):  # the slower one writes there
        for name in storage.list_names(folders.root):
            if name.startswith(begin):
                storage.delete_folder(folders.root / name)


def is_taken(folders: StreamFolders) -> bool:
    """Whether there is something in the place of a stream."""
    return bool(find_storage(folders.root).list_names(folders.table.parent))


def explain_taken(folders: StreamFolders) -> tuple[str, str]:
    """Describe the content in the place of a stream, and the next step."""
    if is_incoming(folders):
        return INCOMING, INCOMING_STEP
    return "there is something already", "set another table_root (LOCKSTEP_TABLE_ROOT), or move the existing files away"


def take_name(drafted: StreamFolders, folders: StreamFolders) -> bool:
    """Move the stream of a draft to its place; False if the place is taken.

    Raises:
        OSError: The storage did not do it; nothing has the stream's name.
    """
    if is_in_object_store(folders.root):
        return _copy_stream(drafted, folders)
    storage = find_storage(folders.root)
    target = folders.table.parent
    try:
        storage.move(drafted.table.parent, target)
    except OSError:
        # A rename fails for other reasons, too: only what is there proves that the place is taken.
        if storage.list_names(target):
            return False
        raise
    return True


def _copy_stream(drafted: StreamFolders, folders: StreamFolders) -> bool:
    storage = find_storage(folders.root)
    if is_taken(folders) or not create_owned(folders.incoming, drafted.root.name):  # 1
        return False
    tables = (folders.table, folders.ledger, folders.quarantine, folders.late, folders.archive)
    if any(map(delta_log.has_log, tables)):  # 2
        storage.delete(folders.incoming)
        return False
    try:
        _copy_objects(drafted.table.parent, folders.table.parent)  # 3
    except FileExistsError:  # the first entry of a table: the run that created it finds `incoming`, and claims nothing
        _delete_copied(drafted, folders)
        return False
    except BaseException:
        _delete_copied(drafted, folders)
        raise
    storage.delete(folders.incoming)  # 4
    return True


def _copy_objects(draft: Path, target: Path) -> None:
    storage = find_storage(target)

    def copy(name: str) -> None:
        if name.endswith(f"{LOG}/{FIRST_ENTRY}"):
            _create_entry(target / name, storage.read(draft / name))
        else:
            storage.copy(draft / name, target / name)

    names = [name for name, _ in storage.walk_files(draft)]
    for rank in sorted(set(map(_rank, names))):
        list(storage.map_files(copy, (name for name in names if _rank(name) == rank)))


def _create_entry(path: Path, content: bytes) -> None:
    """Create the first entry of a table, whose id is in it.

    Raises:
        FileExistsError: There is one of another table.
    """
    storage = find_storage(path)
    try:
        storage.create_whole(path, content)
    except FileExistsError:  # perhaps by this request: its answer was lost, and it was repeated
        if storage.read(path) != content:
            raise


def _rank(name: str) -> int:
    """When an object is copied: a reader finds a table by its checkpoint or its first entry."""
    folder, _, file = name.rpartition("/")
    if folder != f"table/{LOG}":
        # Of other tables first: a faster start would create them, and nothing of it is overwritten.
        return -1 if name.endswith(f"{LOG}/{FIRST_ENTRY}") else 0
    if file == FIRST_ENTRY:  # last: with it the table exists
        return 3
    return 1 if file.endswith(".json") else 2


def _delete_copied(drafted: StreamFolders, folders: StreamFolders) -> None:
    """Delete the copied files; no run has claimed the stream, as `incoming` is there until the end.

    Does nothing if an operator has deleted `incoming`, taking this process for dead: a run may have started the stream.
    """
    storage = find_storage(folders.root)
    target = folders.table.parent
    if not storage.exists(folders.incoming) or storage.read(folders.incoming) != drafted.root.name.encode():
        return
    copied = [target / name for name, _ in storage.walk_files(target)]
    storage.delete_files([path for path in copied if path != folders.incoming])
    storage.delete(folders.incoming)


def delete_stream(folders: StreamFolders, dropped: Path) -> None:
    """Delete all of a stream; after a kill nothing of it is seen, and it can be repeated.

    Args:
        folders: Its folders.
        dropped: A name for the folder until it is deleted, if it can be renamed.
    """
    storage = find_storage(folders.root)
    folder = folders.table.parent
    if is_in_object_store(folders.root):
        storage.delete_files([folder / name for name, _ in storage.walk_files(folder) if _rank(name) >= NOTICED])
        storage.delete_folder(folder)
        return
    storage.delete_folder(dropped)
    if storage.exists(folder):
        storage.move(folder, dropped)
    storage.delete_folder(dropped)
