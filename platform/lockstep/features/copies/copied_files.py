"""Copies of files in a separate folder, whole or not at all, and the manifest that names them.

A manifest is written last and replaced atomically: a folder without a manifest, or with files that it does not
name, is the rest of a killed copy, and does not count. A copy names the files that it is about to write in
`begun.json`: a folder's other files are never deleted or replaced.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from lockstep.errors import LockstepError
from lockstep.model.decoding import decode_json
from lockstep.storage import PathRefused, find_named_files, find_storage, read_named_file

MANIFEST = "manifest.json"
BEGUN = "begun.json"
LOCK = "lock"
MANIFEST_BYTES_MAX = 256_000_000
"""A million files; a larger one is not read into memory."""
CHUNK_BYTES = 8_000_000
PARTIAL = ".partial"
_DRAFT = re.compile(rf"(.+)\.[0-9a-f]{{32}}{re.escape(PARTIAL)}")
"""The name of a file before it is whole: that of the file, and a unique number."""


NOTHING_DONE = "use another copy; nothing was restored from this copy"


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
        reason: The fault.
    """

    def __init__(self, path: Path, reason: str, next_step: str) -> None:
        super().__init__(f"{path}: {reason}", next_step=next_step)
        self.path = path
        self.reason = reason


def copy_file(source: Path, target: Path, *, expected: CopiedFile | None = None) -> CopiedFile:
    """Copy a file, synced, under its name only once it is whole.

    Args:
        source: The file.
        target: Its copy, replaced if it exists.
        expected: Content that it must have.

    Raises:
        FileNotFoundError: The file does not exist.
        CopyDamaged: Its content is not the expected one; no copy is left.
    """
    # The time of writing is taken before the content: a file that changes meanwhile is copied again next time.
    status = find_storage(source).get_status(source)
    digest = hashlib.sha256()
    if status is None:
        raise FileNotFoundError(source)
    storage = find_storage(target)
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}{PARTIAL}")
    size = 0
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
    offset = 0
    while chunk := find_storage(path).read_range(path, offset, CHUNK_BYTES):
        yield chunk
        offset += len(chunk)
        if len(chunk) < CHUNK_BYTES:  # the end: a request beyond it takes two requests
            break


def hash_file(path: Path) -> str:
    """The digest of a file's content. Raises FileNotFoundError."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def check_copied(path: Path, found: CopiedFile, expected: CopiedFile) -> None:
    """Refuse a file that differs from the manifest. Raises CopyDamaged."""
    if (found.size, found.sha256) != (expected.size, expected.sha256):
        problem = f"not as it was written: {found.size} bytes of {expected.size}, sha256 {found.sha256[:12]}"
        raise CopyDamaged(path, problem, NOTHING_DONE)


M = TypeVar("M", bound=msgspec.Struct)


class BegunCopy(msgspec.Struct, frozen=True):
    """A copy that has started; deleted at its end.

    Attributes:
        stream: Name of the stream.
        files: All files of the folder that its copies have written or will write.
    """

    stream: str
    files: tuple[str, ...]


def write_manifest(folder: Path, manifest: msgspec.Struct, name: str = MANIFEST) -> None:
    """Write the manifest of a folder, or replace it, at once and synced: its files must be on disk.

    Raises:
        CopyDamaged: It names so many files that it could not be read.
    """
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    if len(content) > MANIFEST_BYTES_MAX:
        problem = f"its {name} would have {len(content)} bytes, at most {MANIFEST_BYTES_MAX} are read"
        raise CopyDamaged(folder, problem, "lockstep compact STREAM first: it makes few files of many")
    pending = find_storage(folder).open_pending(folder / f"{name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        pending.sink.write(content)
        pending.finish(name)
    finally:
        pending.abandon()


def read_manifest(folder: Path, kind: type[M], name: str = MANIFEST) -> M:
    """The manifest of a folder.

    Raises:
        CopyDamaged: There is none, or it is of something else.
        PathRefused: It is a link, or too large to be one.
    """
    try:
        return decode_json(read_named_file(folder, name, MANIFEST_BYTES_MAX), kind)
    except FileNotFoundError:
        step = "name the folder that the copy was written to; a copy that was killed has none: make it again"
        raise CopyDamaged(folder, f"there is no {name}: not a whole copy", step) from None
    except msgspec.DecodeError as error:
        raise CopyDamaged(folder / name, str(error), "use another copy, or the release that wrote it") from None


def check_files(folder: Path, below: str, files: Iterable[CopiedFile], lost: str) -> None:
    """Check the places and sizes of the files that a manifest names, before the first is read.

    Args:
        folder: The folder of the manifest.
        below: The folder in it to which they are relative.
        files: The files.
        lost: The text for a missing file.

    Raises:
        PathRefused: One is not below the folder, or behind a link.
        CopyDamaged: One is gone, or has another size.
    """
    named = list(files)
    statuses = find_named_files(folder, (file.path for file in named), below=below)
    for file in named:
        status = statuses[file.path]
        if status is None:
            raise CopyDamaged(folder / below / file.path, lost, NOTHING_DONE)
        if status.size != file.size:
            problem = f"not as it was written: {status.size} bytes of {file.size}"
            raise CopyDamaged(folder / below / file.path, problem, NOTHING_DONE)


def list_foreign_names(folder: Path) -> list[str]:
    """The names in a folder without a copy yet, besides its lock and the rest of a killed first file."""
    names = sorted(find_storage(folder).list_names(folder))
    return [name for name in names if name != LOCK and _find_original(name) not in {MANIFEST, BEGUN}]


def list_drafts(folder: Path, below: str, names: AbstractSet[str]) -> list[str]:
    """Files that killed copies left behind unfinished, below a folder: their names include that of the file."""
    present = [name for name, _ in find_storage(folder).walk_files(folder / below)]
    return sorted(name for name in present if _find_original(name) in names)


def delete_copied(folder: Path, below: str, names: Iterable[str]) -> tuple[str, ...]:
    """Delete some files of earlier copies; returns those that existed. Drafts of the manifest, too.

    Raises:
        PathRefused: One is not below the folder, or behind a link; nothing was deleted.
    """
    storage = find_storage(folder)
    statuses = find_named_files(folder, sorted(names), below=below)
    there = tuple(name for name, status in statuses.items() if status is not None)
    # All names were checked before the first file is deleted.
    storage.delete_files([folder / below / name for name in there])
    drafts = [name for name in storage.list_names(folder) if _find_original(name) in {MANIFEST, BEGUN}]
    storage.delete_files([folder / name for name in drafts])
    return there


def _find_original(name: str) -> str:
    """The file of which a name is a draft; empty for no draft."""
    match = _DRAFT.fullmatch(name)
    return "" if match is None else match[1]


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
        PathRefused: Its lock is a link, or no file.
    """
    storage = find_storage(folder)
    storage.make_folder(folder)
    is_there = storage.exists(folder / LOCK)
    is_link = storage.resolve(folder / LOCK) != storage.resolve(folder) / LOCK
    # A lock that a link names would create or lock a file elsewhere.
    if is_link or (is_there and storage.get_own_status(folder / LOCK) is None):
        raise PathRefused(folder, LOCK, "it is a link, or no file")
    try:
        with storage.lock(folder / LOCK):
            yield
    except BlockingIOError:
        raise CopyInProgress(folder) from None
