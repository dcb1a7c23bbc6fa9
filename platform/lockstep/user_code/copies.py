"""Immutable copies of code, each in a folder named after its digest.

    <code root>/copies/<digest>/

A copy is written under another name and renamed, so that it is whole. A process that imports from a copy holds a
shared lock on its folder until it ends. Copies that no process and no release uses are deleted, except the newest.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.user_code.files import CodeFiles, CodeUnusable, digest_contents

FOLDER = "copies"
NAMES = ".files.json"
"""The names of the files of a copy; other files there, such as caches that code writes next to itself, do not count."""
DRAFT = ".new-"
"""Start of the name of a copy that is not whole, or that is being deleted."""
KEPT = 5
"""Unused copies that stay, the newest: history names their digests."""
ATTEMPTS = 3


class CopyChanged(CodeUnusable):
    """The files of a copy differ from its digest."""

    def __init__(self, folder: Path) -> None:
        step = f"delete the folder {folder}, and repeat the command in the project's folder"
        super().__init__(folder, "was changed after it was made", step)


_HELD = dict[Path, int]()
"""Descriptors of the folders of copies that this process imports from: their locks end with the process."""


def hold_copy(root: Path, digest: str) -> Path | None:
    """The folder of a copy, which stays until this process ends; None without it.

    Args:
        root: The code root.
        digest: Digest of the code.

    Raises:
        CopyChanged: Its files have changed.
    """
    folder = root / FOLDER / digest
    descriptor = _lock(folder)
    if descriptor is None:
        return None
    if folder in _HELD:
        os.close(descriptor)
    else:
        _HELD[folder] = descriptor
    _check(folder, digest)
    with suppress(OSError):  # of another user, or on a disk that is read-only
        os.utime(folder)  # its age counts from its last use
    return folder


def _lock(folder: Path) -> int | None:
    """A descriptor with a shared lock on a folder; None without the folder, or if it was deleted meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # a file system without locks: the copy may be deleted if it is unused for long
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(folder.stat(), os.fstat(descriptor)):
            return descriptor
    os.close(descriptor)
    return None


def _check(folder: Path, digest: str) -> None:
    try:
        names: list[str] = json.loads((folder / NAMES).read_text(errors="surrogateescape"))
        contents = {name: (folder / name).read_bytes() for name in names}
    except (FileNotFoundError, ValueError):
        raise CopyChanged(folder) from None
    if digest_contents(contents) != digest:
        raise CopyChanged(folder)


def make_copy(root: Path, code: CodeFiles, named: Collection[str] = ()) -> Path:
    """Make the copy of some code, unless it is there, and hold it; delete copies that are not used any more.

    Args:
        root: The code root.
        code: The files.
        named: Digests of copies that are never deleted.

    Raises:
        CopyChanged: The copy is there, and its files have changed.
        OSError: It cannot be written.
    """
    copies = root / FOLDER
    for _ in range(ATTEMPTS):
        copy = hold_copy(root, code.digest)
        if copy is not None:
            prune_copies(root, {*named, code.digest})
            return copy
        copies.mkdir(parents=True, exist_ok=True)
        with _draft(copies) as draft:
            _write(draft, code)
            with suppress(OSError):  # another process was first
                draft.rename(copies / code.digest)
    raise CodeUnusable(copies / code.digest, "disappears again", "see which process deletes files there")


@contextmanager
def _draft(copies: Path) -> Iterator[Path]:
    """A new folder, locked against `prune_copies`; deleted in the end, unless it was renamed."""
    while True:
        draft = copies / f"{DRAFT}{uuid.uuid4().hex}"
        draft.mkdir()
        descriptor = _lock(draft)
        if descriptor is not None:  # otherwise `prune_copies` deleted it before it was locked
            break
    try:
        yield draft
    finally:
        os.close(descriptor)
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, code: CodeFiles) -> None:
    names = json.dumps(list(code.contents)).encode()
    for name, content in ((NAMES, names), *code.contents.items()):
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), code.modes.get(name, 0o444) & 0o555)  # as readable as the original


def prune_copies(root: Path, named: Collection[str]) -> None:
    """Delete copies that no process holds: drafts of killed processes, and all but the newest unused copies.

    Args:
        root: The code root.
        named: Digests of copies that stay.
    """
    copies = root / FOLDER
    unused = list[tuple[float, Path]]()
    for folder in copies.iterdir():
        if folder.name in named:
            continue
        age = _find_age(folder)
        if age is not None:
            unused.append((age, folder))
    complete = [item for item in unused if not item[1].name.startswith(DRAFT)]
    drafts = [item for item in unused if item[1].name.startswith(DRAFT)]
    newest_first = sorted(complete, reverse=True)
    for _, folder in (*newest_first[KEPT:], *drafts):
        _delete(folder)


def _find_age(folder: Path) -> float | None:
    with suppress(OSError):
        return folder.stat().st_mtime
    return None


def _delete(folder: Path) -> None:
    """Delete a folder unless a process holds it: first renamed, so that no process finds half of a copy."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = folder.with_name(f"{DRAFT}{uuid.uuid4().hex}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(descriptor)
