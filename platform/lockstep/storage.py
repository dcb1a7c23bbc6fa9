"""The one door to stored files: whatever lies under the table root is written, read, listed and deleted through here.

Outside of this module such a path is an address: it is joined, compared and named in errors, and never opened.
Libraries that open files themselves (delta-rs, Arrow, Spark) are given `Storage.uri`. So another kind of storage is
one more implementation of `Storage`, chosen by `find_storage`.

Files of one machine that nothing outlives (spilled rows, runs of a sort) are `Scratch`; local copies of state have a
format and locks of their own (state/local_store.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedWriter, FileIO
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec
from typing_extensions import Buffer, override


class FileStatus(msgspec.Struct, frozen=True):
    """Metadata of a file.

    Attributes:
        size: Bytes.
        modified_at: Time of the last change, in seconds since 1970 (UTC), by the storage's clock.
    """

    size: int
    modified_at: float


class NotWritten(OSError):
    """A file was not created, for certain: the error arose before it could have its name."""


class PendingFile(Protocol):
    """A large file while it is written. Nothing may refer to it before `finish`."""

    @property
    def sink(self) -> BinaryIO:
        """Takes the bytes."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither finished nor abandoned."""

    def finish(self) -> int:
        """Close the file; gives its bytes. It and its name survive a power loss; a failure leaves it to be abandoned.

        Raises:
            OSError: The storage did not take all of it.
        """

    def abandon(self) -> None:
        """Remove the file, unless it is finished."""


class Storage(Protocol):
    """What lockstep needs of the storage of its tables. Errors are those of Python's files (`OSError`)."""

    def create(self, path: Path, content: bytes = b"") -> None:
        """Create a small file if there is none; of several processes one succeeds. A power loss may undo it.

        Raises:
            FileExistsError: There is one.
        """

    def create_whole(self, path: Path, content: bytes) -> None:
        """Create a file with all of its content, or not at all; of several processes one succeeds.

        A power loss may undo it, and leaves no part of it; `sync` makes it last.

        Raises:
            FileExistsError: There is one.
            NotWritten: The storage did not take the content; after any other error the file may be there.
        """

    def replace(self, path: Path, content: bytes) -> None:
        """Write a small file whole: readers see the old or the new content. A power loss may undo it."""

    def open_pending(self, path: Path) -> PendingFile:
        """Begin a new large file.

        Raises:
            FileExistsError: There is one.
        """

    def read(self, path: Path) -> bytes:
        """The whole content.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def read_range(self, path: Path, start: int, length: int) -> bytes:
        """The bytes from `start` on; fewer than `length` where the file ends before.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def list_names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order; none where there is no folder."""

    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        """The files below a folder that match a pattern such as `*/*.parquet`, sorted."""

    def walk_files(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        """All files below a folder, at any depth, by their paths relative to it (`a/b.parquet`); in no order.

        One listing, whatever their number: no request a file. Files that are deleted meanwhile may be left out.
        """

    def get_status(self, path: Path) -> FileStatus | None:
        """Size and time of a file; None where there is none."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""

    def delete(self, path: Path) -> int | None:
        """Delete a file; gives its bytes, or None where there was none."""

    def delete_folder(self, folder: Path) -> None:
        """Delete a folder with all that is in it; a missing one is no error."""

    def delete_empty_folder(self, folder: Path) -> None:
        """Delete a folder in which nothing is, in one step; one with content stays, a missing one is no error."""

    def move(self, path: Path, target: Path) -> None:
        """Give a file or a folder another name in the same storage, at once; that survives a power loss.

        Raises:
            FileNotFoundError: There is no such file.
            OSError: A folder with files has the name; of several processes one succeeds.
        """

    def copy(self, path: Path, target: Path) -> None:
        """Copy a file, with the folders above the copy; it and its name survive a power loss."""

    def point(self, pointer: Path, target: Path) -> None:
        """Let a name stand for a folder next to it, at once; readers see the old or the new one."""

    def read_pointer(self, pointer: Path) -> Path | None:
        """The folder that a pointer stands for; None without a pointer."""

    def sync(self, path: Path) -> None:
        """Make a file that a library has written survive a power loss, with its name.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those above it, where they are missing."""

    def lock(self, path: Path) -> AbstractContextManager[None]:
        """Keep other processes out while a block runs; the end of the process ends it, too.

        Raises:
            BlockingIOError: Another process has it.
        """

    def uri(self, path: Path) -> str:
        """The address of a file or folder for libraries that open it themselves."""


class LocalStorage(Storage):
    """A folder of a file system with atomic rename, exclusive creation and fsync: see `lockstep doctor`."""

    @override
    def create(self, path: Path, content: bytes = b"") -> None:
        with _name_in_errors(path), path.open("xb") as file:
            file.write(content)

    @override
    def create_whole(self, path: Path, content: bytes) -> None:
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            _write_draft(draft, path, content)
            with _name_in_errors(path):
                os.link(draft, path)
        finally:
            with suppress(OSError):  # the outcome is decided; housekeeping deletes what stays
                draft.unlink()

    @override
    def replace(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        with _name_in_errors(path):
            draft.write_bytes(content)
            draft.replace(path)

    @override
    def open_pending(self, path: Path) -> LocalPendingFile:
        made = list(takewhile(lambda folder: not folder.exists(), path.parents))
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in made:  # each has its name in the one above it
            _sync(folder.parent)
        return LocalPendingFile(path)

    @override
    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    @override
    def read_range(self, path: Path, start: int, length: int) -> bytes:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    @override
    def list_names(self, folder: Path) -> list[str]:
        try:
            return os.listdir(folder)  # noqa: PTH208  # tens of thousands of names: no Path for each
        except (FileNotFoundError, NotADirectoryError):
            return []

    @override
    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        return sorted(folder.glob(pattern))

    @override
    def walk_files(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        pending = [""]
        while pending:
            below = pending.pop()
            with suppress(FileNotFoundError), os.scandir(folder / below) as entries:
                for entry in entries:
                    name = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{name}/")
                    elif (status := _read_status(entry)) is not None:
                        yield name, status

    @override
    def get_status(self, path: Path) -> FileStatus | None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStatus(found.st_size, found.st_mtime)

    @override
    def exists(self, path: Path) -> bool:
        return path.exists()

    @override
    def delete(self, path: Path) -> int | None:
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
        return size

    @override
    def delete_folder(self, folder: Path) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)

    @override
    def delete_empty_folder(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
                raise

    @override
    def move(self, path: Path, target: Path) -> None:
        path.rename(target)
        for folder in {path.parent, target.parent}:
            _sync(folder)

    @override
    def copy(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        _sync(target)
        _sync(target.parent)

    @override
    def point(self, pointer: Path, target: Path) -> None:
        draft = pointer.with_name(f"{pointer.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        draft.replace(pointer)
        _sync(pointer.parent)

    @override
    def read_pointer(self, pointer: Path) -> Path | None:
        try:
            return pointer.parent / pointer.readlink()
        except FileNotFoundError:
            return None

    @override
    def sync(self, path: Path) -> None:
        _sync(path)
        _sync(path.parent)

    @override
    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    @override
    @contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    @override
    def uri(self, path: Path) -> str:
        return str(path)


class _NamedFile(FileIO):
    """A file whose failed writes name it, unlike those of Python's own."""

    @override
    def write(self, content: Buffer, /) -> int:
        with _name_in_errors(Path(str(self.name))):
            return super().write(content)


class LocalPendingFile(PendingFile):
    """A file under its final name, which is unique: nothing refers to it, and what a crash leaves is cleaned up."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._path, self._sink = path, BufferedWriter(_NamedFile(path, "xb"))

    @property
    @override
    def sink(self) -> BinaryIO:
        return self._sink

    @property
    @override
    def is_open(self) -> bool:
        return not self._sink.closed

    @override
    def finish(self) -> int:
        self._sink.flush()
        with _name_in_errors(self._path):
            os.fsync(self._sink.fileno())
        size = self._sink.tell()
        _sync(self._path.parent)
        self._sink.close()
        return size

    @override
    def abandon(self) -> None:
        if self.is_open:
            with suppress(OSError):  # what is still buffered may not fit on the disk, and is not wanted
                self._sink.close()
            self._path.unlink(missing_ok=True)


def _read_status(entry: os.DirEntry[str]) -> FileStatus | None:
    """Size and time of a listed file; None where it is none, or is gone."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return FileStatus(found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """Let errors name a file: those of writes and syncs name none, and those of drafts a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_draft(draft: Path, path: Path, content: bytes) -> None:
    """Write the content of a file that will have another name, and sync it."""
    try:
        draft.write_bytes(content)
        _sync(draft)
    except OSError as error:
        raise NotWritten(error.errno, error.strerror, str(path)) from error


def _sync(path: Path) -> None:
    """Sync a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with _name_in_errors(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


_LOCAL: Final = LocalStorage()


def find_storage(path: Path) -> Storage:
    """The storage that holds a path: local folders only, so far."""
    del path
    return _LOCAL


class Scratch(msgspec.Struct, frozen=True):
    """A folder for files of one process on its own machine; nothing of them is left after a kill.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @contextmanager
    def open_file(self, prefix: str) -> Iterator[tuple[BufferedWriter, Path]]:
        """A file to write and to map; its name is gone after the block, its pages stay while they are mapped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self.folder, prefix=prefix)
        try:
            with os.fdopen(number, "wb") as file:
                yield file, Path(name)
        finally:
            Path(name).unlink()
