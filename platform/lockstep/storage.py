"""The one door to stored files: whatever lies under the table root is written, read, listed and deleted through here.

Outside of this module such a path is an address: it is joined, compared and named in errors, and never opened.
Libraries that open files themselves (delta-rs, Arrow, Spark) are given `Storage.uri`. So another kind of storage is
one more implementation of `Storage`, chosen by `find_storage`.

Files of one machine that nothing outlives (spilled rows, runs of a sort) are `Scratch`; local copies of state have a
format and locks of their own (state/local_store.py).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec


class FileStatus(msgspec.Struct, frozen=True):
    """Metadata of a file.

    Attributes:
        size: Bytes.
        modified_at: Time of the last change, in seconds since 1970 (UTC), by the storage's clock.
    """

    size: int
    modified_at: float


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

    def get_status(self, path: Path) -> FileStatus | None:
        """Size and time of a file; None where there is none."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""

    def delete(self, path: Path) -> int | None:
        """Delete a file; gives its bytes, or None where there was none."""

    def move(self, path: Path, target: Path) -> None:
        """Give a file another name in the same storage; that survives a power loss.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def sync(self, path: Path) -> None:
        """Make a file that a library has written survive a power loss, with its name.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those above it, where they are missing."""

    def uri(self, path: Path) -> str:
        """The address of a file or folder for libraries that open it themselves."""


class LocalStorage:
    """A folder of a file system with atomic rename, exclusive creation and fsync: see `lockstep doctor`."""

    def create(self, path: Path, content: bytes = b"") -> None:
        """See `Storage.create`."""
        with path.open("xb") as file:
            file.write(content)

    def replace(self, path: Path, content: bytes) -> None:
        """See `Storage.replace`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
        draft.write_bytes(content)
        draft.replace(path)

    def open_pending(self, path: Path) -> LocalPendingFile:
        """See `Storage.open_pending`."""
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync(path.parent.parent)
        return LocalPendingFile(path)

    def read(self, path: Path) -> bytes:
        """See `Storage.read`."""
        return path.read_bytes()

    def read_range(self, path: Path, start: int, length: int) -> bytes:
        """See `Storage.read_range`."""
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    def list_names(self, folder: Path) -> list[str]:
        """See `Storage.list_names`."""
        try:
            return os.listdir(folder)  # noqa: PTH208  # tens of thousands of names: no Path for each
        except FileNotFoundError:
            return []

    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        """See `Storage.find_files`."""
        return sorted(folder.glob(pattern))

    def get_status(self, path: Path) -> FileStatus | None:
        """See `Storage.get_status`."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStatus(found.st_size, found.st_mtime)

    def exists(self, path: Path) -> bool:
        """See `Storage.exists`."""
        return path.exists()

    def delete(self, path: Path) -> int | None:
        """See `Storage.delete`."""
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
        return size

    def move(self, path: Path, target: Path) -> None:
        """See `Storage.move`."""
        path.rename(target)
        for folder in {path.parent, target.parent}:
            _sync(folder)

    def sync(self, path: Path) -> None:
        """See `Storage.sync`."""
        _sync(path)
        _sync(path.parent)

    def make_folder(self, folder: Path) -> None:
        """See `Storage.make_folder`."""
        folder.mkdir(parents=True, exist_ok=True)

    def uri(self, path: Path) -> str:
        """See `Storage.uri`."""
        return str(path)


class LocalPendingFile:
    """A file under its final name, which is unique: nothing refers to it, and what a crash leaves is cleaned up."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._path, self._sink = path, path.open("xb")

    @property
    def sink(self) -> BinaryIO:
        """See `PendingFile.sink`."""
        return self._sink

    @property
    def is_open(self) -> bool:
        """See `PendingFile.is_open`."""
        return not self._sink.closed

    def finish(self) -> int:
        """See `PendingFile.finish`."""
        self._sink.flush()
        os.fsync(self._sink.fileno())
        size = self._sink.tell()
        _sync(self._path.parent)
        self._sink.close()
        return size

    def abandon(self) -> None:
        """See `PendingFile.abandon`."""
        if self.is_open:
            with suppress(OSError):  # what is still buffered may not fit on the disk, and is not wanted
                self._sink.close()
            self._path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Sync a file, or a folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
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
