"""Publishes an hour under its name when it is written whole; of several exports the fastest does.

In a file system by one rename of its staging folder. An object store has no rename, so there

1. `_claim` is created in the folder of the hour, which names the staging folder: of several exports one succeeds,
2. the files are copied there, the manifest last: an hour is whole when it has its manifest,
3. the staging folder is deleted.

The folder of a killed export is deleted when it is a day old, with the unfinished hour that the export had claimed. An
hour is deleted in the other order: the manifest first, `_claim` last, and the staging folder is there until then, with
the mark of the process that deletes: of several withdrawals of one publication one deletes. The mark of a process that
pauses passes to another, and the hour may be published again before the process continues. So its files are deleted by
their names, which have the last characters of the claim: those of a later publication stay.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from lockstep.addresses import is_in_object_store
from lockstep.storage import PathRefused, create_owned, find_fault, find_storage

STAGING = "_staging"
CLAIM = "_claim"
STALE_SECONDS = 86_400.0
"""No hour takes a day to write."""
WITHDRAWAL = "_withdrawal"
"""Prefix of the mark of a process that deletes a published hour, with a number: the first is 0."""
WITHDRAWING_SECONDS = 600.0
"""After this time a withdrawal was killed, and another process continues it: it deletes a few files."""
WAIT_SECONDS = 1.0
_SUFFIX_LENGTH = 8
_STAGED = re.compile(r"[^/]+-[0-9a-f]{32}")
"""The name of a staging folder: a folder of another name is not ours."""


def make_staging_folder(folder: Path, name: str) -> Path:
    """The path of a new staging folder of a dataset."""
    return folder / STAGING / f"{name}-{uuid.uuid4().hex}"


def find_suffix(staged: str) -> str:
    """The end of the stems of all data files of a publication, by the name of its staging folder."""
    return staged[-_SUFFIX_LENGTH:]


def publish_folder(staged: Path, target: Path, last: str) -> bool:
    """Publish a folder under its name; False if that name exists: then the folder is deleted.

    Args:
        staged: The folder, whose files are synced.
        target: Its name.
        last: Its file that exists only if it is whole.
    """
    # An object store cannot rename a folder, so that a claim in it decides.
    publish = _copy if is_in_object_store(target) else _rename
    if publish(staged, target, last):
        return True
    find_storage(staged).delete_folder(staged)
    return False


def _rename(staged: Path, target: Path, last: str) -> bool:
    storage = find_storage(target)
    try:
        storage.move(staged, target)
    except OSError:
        if storage.exists(target / last):
            return False
        storage.delete_folder(staged)
        raise
    return True


def _copy(staged: Path, target: Path, last: str) -> bool:
    storage = find_storage(target)
    if not create_owned(target / CLAIM, staged.name):
        return False
    try:
        names = [name for name, _ in storage.walk_files(staged)]
        # The last file at the end: with it the folder is whole for readers.
        for name in sorted(names, key=lambda name: name == last):
            storage.copy(staged / name, target / name)
    except BaseException:
        _delete_published(target, last, staged.name)  # if this fails, too, both are deleted in a day
        storage.delete_folder(staged)
        raise
    storage.delete_folder(staged)
    return True


def take_back_folder(folder: Path, target: Path, last: str, is_wanted: Callable[[], bool]) -> bool:
    """Take a folder back: by one rename, or its last file first; a kill is then that of an export.

    A withdrawal that was killed is finished in any case.

    Args:
        folder: The dataset.
        target: The published folder.
        last: Its file that exists only if it is whole.
        is_wanted: Whether the folder that is published now is the wrong one.

    Returns:
        False if the folder does not exist, or is not the wrong one.

    Raises:
        PathRefused: The claim of the folder does not name a staging folder.
    """
    if is_in_object_store(target):
        return _withdraw(folder, target, last, is_wanted)
    if not is_wanted():
        return False
    storage = find_storage(target)
    # By one rename: readers never see a part of the folder.
    staged = make_staging_folder(folder, target.name)
    storage.make_folder(staged.parent)
    try:
        storage.move(target, staged)
    except FileNotFoundError:
        return False
    storage.delete_folder(staged)
    return True


def is_half_withdrawn(folder: Path, target: Path, last: str) -> bool:
    """Whether a folder is not whole because its withdrawal was killed, or has not ended.

    Raises:
        PathRefused: The claim of the folder does not name a staging folder.
    """
    name = _read_claim(target)
    return (
        name is not None
        and bool(_list_marks(folder / STAGING / name))
        and not find_storage(target).exists(target / last)
    )


def _withdraw(folder: Path, target: Path, last: str, is_wanted: Callable[[], bool]) -> bool:
    """Delete a published folder, or wait until another process has deleted it.

    1. Mark the staging folder that the claim names.
    2. Delete the files of that claim: another withdrawal may have ended before the mark, and another export may have
       published since.
    """
    storage = find_storage(target)
    name = _read_claim(target)
    # A withdrawal that was killed is finished in any case: its hour is not whole.
    if name is None or not (is_wanted() or is_half_withdrawn(folder, target, last)):
        return False
    staged = folder / STAGING / name
    while not _mark(staged):  # 1
        time.sleep(WAIT_SECONDS)
        if _read_claim(target) != name:
            return True
    _delete_published(target, last, name)  # 2
    storage.delete_folder(staged)
    return True


def _mark(staged: Path) -> bool:
    """Mark a staging folder for this process, which then deletes the published folder; False if it has a mark."""
    storage = find_storage(staged)
    marks = _list_marks(staged)
    if marks:
        newest = max(marks, key=_read_number)
        status = storage.get_status(staged / newest)
        # The process of the newest mark still deletes.
        if status is None or time.time() - status.modified_at < WITHDRAWING_SECONDS:
            return False
    return create_owned(staged / f"{WITHDRAWAL}{len(marks)}", uuid.uuid4().hex)


def _list_marks(staged: Path) -> list[str]:
    return [name for name in find_storage(staged).list_names(staged) if name.startswith(WITHDRAWAL)]


def _read_number(mark: str) -> int:
    number = mark.removeprefix(WITHDRAWAL)
    return int(number) if number.isdecimal() else 0


def _read_claim(target: Path) -> str | None:
    """The staging folder that a claim names; None without a claim.

    Raises:
        PathRefused: It names none.
    """
    try:
        name = find_storage(target).read(target / CLAIM).decode(errors="replace")
    except FileNotFoundError:
        return None
    if find_fault(name) or _STAGED.fullmatch(name) is None:
        raise PathRefused(target / CLAIM, name, "it is no staging folder")
    return name


def _delete_published(target: Path, last: str, name: str) -> None:
    """Delete a publication in an object store so that after a kill it is not whole, and has its claim.

    Args:
        target: The folder, which may have a later publication at any step.
        last: The file that exists only if a publication is whole.
        name: The claim of the publication.
    """
    storage = find_storage(target)
    if _read_claim(target) == name:
        storage.delete(target / last)
    # By the suffix of this claim: files of a later publication stay.
    files = (Path(file) for file, _ in storage.walk_files(target))
    storage.delete_files([target / file for file in files if file.stem.endswith(find_suffix(name))])
    if _read_claim(target) == name:
        storage.delete(target / CLAIM)


def list_staging_folders(folder: Path) -> list[str]:
    """Names of the staging folders of a dataset: of exports and withdrawals that run or were killed."""
    return [name for name in find_storage(folder).list_names(folder / STAGING) if _STAGED.fullmatch(name)]


def find_whole_folders(targets: Iterable[Path], last: str) -> list[Path]:
    """Those of some folders that are whole."""
    listed = list(targets)
    if not listed:
        return []
    statuses = find_storage(listed[0]).get_statuses([target / last for target in listed])
    return [target for target, status in zip(listed, statuses, strict=True) if status is not None]


def delete_stale_folders(folder: Path, targets: Iterable[Path], last: str) -> int:
    """Delete folders that killed exports left; returns the number of their staging folders.

    Args:
        folder: The dataset.
        targets: Its published folders, and those that may be unfinished.
        last: The file of each that exists only if it is whole.
    """
    storage = find_storage(folder)
    stale = [name for name in list_staging_folders(folder) if _is_stale(folder / STAGING / name)]
    if stale and is_in_object_store(folder):
        _delete_unfinished(set(stale), list(targets), last)
    for name in stale:
        storage.delete_folder(folder / STAGING / name)
    return len(stale)


def _is_stale(staged: Path) -> bool:
    storage = find_storage(staged)
    status = storage.get_status(staged)
    if status is not None:
        return time.time() - status.modified_at > STALE_SECONDS
    # An object store has no folder, only the files below it.
    times = [file.modified_at for _, file in storage.walk_files(staged)]
    return bool(times) and time.time() - max(times) > STALE_SECONDS


def _delete_unfinished(stale: set[str], targets: list[Path], last: str) -> None:
    # A folder without its last file was never published: the claim tells whose it is.
    for target in set(targets) - set(find_whole_folders(targets, last)):
        with suppress(FileNotFoundError):  # another export deletes it
            name = find_storage(target).read(target / CLAIM).decode(errors="replace")
            if name in stale:
                _delete_published(target, last, name)
