"""Copies of files in a folder of their own, whole or not at all, and the manifest that names them.

A manifest is written last and replaced at once: a folder without one, or with files that it does not name, is what a
killed copy left, and passes for nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from lockstep.errors import LockstepError
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage

MANIFEST = "manifest.json"
CHUNK_BYTES = 8_000_000
PARTIAL = ".partial"


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of a copy.

    Attributes:
        path: Relative to the folder that holds it.
        size: Bytes.
        sha256: Digest of its content.
        modified_at: When the original was written: with the size it tells whether that is still the same file.
    """

    path: str
    size: int
    sha256: str
    modified_at: float = 0.0


class CopyDamaged(LockstepError):
    """A copy is not whole: it has no manifest, or a file is missing or not as it was written.

    Attributes:
        path: The folder or file.
        reason: What is wrong.
    """

    def __init__(self, path: Path, reason: str, next_step: str) -> None:
        super().__init__(f"{path}: {reason}", next_step=next_step)
        self.path, self.reason = path, reason


def copy_file(source: Path, target: Path, *, expected: CopiedFile | None = None) -> CopiedFile:
    """Copy a file, synced, under its name only once it is whole.

    Args:
        source: The file.
        target: Its copy, replaced where there is one.
        expected: Content that it must have.

    Raises:
        FileNotFoundError: There is no such file.
        CopyDamaged: Its content is not the expected one; there is no copy then.
    """
    status, digest = find_storage(source).get_status(source), hashlib.sha256()
    if status is None:
        raise FileNotFoundError(source)
    storage, draft, size = find_storage(target), target.with_name(f"{target.name}.{uuid.uuid4().hex}{PARTIAL}"), 0
    pending = storage.open_pending(draft)
    try:
        for chunk in read_chunks(source):
            pending.sink.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        made = CopiedFile(target.name, size, digest.hexdigest(), status.modified_at)
        if expected is not None:
            check_copied(source, made, expected)
        pending.finish(target.name)
    except BaseException:
        pending.abandon()
        raise
    return made


def read_chunks(path: Path) -> Iterator[bytes]:
    """The content of a file, piece by piece. Raises FileNotFoundError."""
    at = 0
    while chunk := find_storage(path).read_range(path, at, CHUNK_BYTES):
        yield chunk
        at += len(chunk)
        if len(chunk) < CHUNK_BYTES:  # the end: to ask for what is behind it takes two requests
            break


def hash_file(path: Path) -> str:
    """The digest of a file's content. Raises FileNotFoundError."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def check_copied(path: Path, found: CopiedFile, expected: CopiedFile) -> None:
    """Refuse a file that is not as the manifest says. Raises CopyDamaged."""
    if (found.size, found.sha256) != (expected.size, expected.sha256):
        problem = f"not as it was written: {found.size} bytes of {expected.size}, sha256 {found.sha256[:12]}"
        raise CopyDamaged(path, problem, "use another copy; nothing was restored from this one")


M = TypeVar("M", bound=msgspec.Struct)


def write_manifest(folder: Path, manifest: msgspec.Struct) -> None:
    """Write the manifest of a folder, or replace it, at once and synced: its files must be on disk."""
    storage = find_storage(folder)
    draft = folder / f"{MANIFEST}.{uuid.uuid4().hex}{PARTIAL}"
    pending = storage.open_pending(draft)
    try:
        pending.sink.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        pending.finish(MANIFEST)
    finally:
        pending.abandon()


def read_manifest(folder: Path, kind: type[M]) -> M:
    """The manifest of a folder.

    Raises:
        CopyDamaged: There is none, or it is of something else.
    """
    try:
        return decode_json(find_storage(folder).read(folder / MANIFEST), kind)
    except FileNotFoundError:
        step = "name the folder that the copy was written to; a copy that was killed has none: make it again"
        raise CopyDamaged(folder, f"there is no {MANIFEST}: not a whole copy", step) from None
    except msgspec.DecodeError as error:
        raise CopyDamaged(folder / MANIFEST, str(error), "use another copy, or the release that wrote it") from None


def delete_others(folder: Path, below: str, names: Iterable[str]) -> int:
    """Delete the files below a folder that are not named, of an older copy or a killed one; gives their number."""
    storage, kept = find_storage(folder), {folder / below / name for name in names}
    found = (path for path in storage.find_files(folder / below, "**/*.*") if path not in kept)
    drafts = (folder / name for name in storage.list_names(folder) if name.endswith(PARTIAL))
    return sum(storage.delete(path) is not None for path in (*found, *drafts))


class CopyInProgress(LockstepError):
    """Another process writes to the folder of a copy.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process writes to {folder}", next_step="wait for its end, or name another folder")
        self.folder = folder


@contextmanager
def lock_copy(folder: Path) -> Iterator[None]:
    """Write to a folder alone; a kill releases it.

    Raises:
        CopyInProgress: Another process writes to it.
    """
    storage = find_storage(folder)
    storage.make_folder(folder)
    try:
        with storage.lock(folder / "lock"):
            yield
    except BlockingIOError:
        raise CopyInProgress(folder) from None
