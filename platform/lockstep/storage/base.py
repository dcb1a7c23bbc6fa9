"""What lockstep needs of the storage of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

import msgspec

from lockstep.addresses import to_uri
from lockstep.errors import EnvironmentProblem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import SubTreeFileSystem

T = TypeVar("T")
R = TypeVar("R")


class FileStatus(msgspec.Struct, frozen=True):
    """Metadata of a file.

    Attributes:
        size: Bytes.
        modified_at: Time of the last change, in seconds since 1970 (UTC), by the storage's clock.
        tag: Differs for other content, if the storage keeps times in whole seconds only.
    """

    size: int
    modified_at: float
    tag: str = ""


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

    def finish(self, name: str | None = None) -> int:
        """Close the file; returns its bytes. File and name survive a power loss; after a failure, abandon it.

        Args:
            name: Its name, instead of its first name; as unique.

        Raises:
            OSError: The storage did not take all of it.
        """

    def abandon(self) -> None:
        """Remove the file, unless it is finished."""


class Storage(Protocol):
    """What lockstep needs of the storage of its tables. Errors are those of Python's files (`OSError`)."""

    @property
    def poll_factor(self) -> float:
        """Factor for the intervals at which files are written or polled."""

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

    def overwrite(self, path: Path, content: bytes) -> None:
        """Write over a small file of the same length, without a new file if the storage can do so.

        A reader at the same moment may see a mix of the old and the new content.

        Raises:
            FileNotFoundError: The file does not exist; an object store may create it instead.
        """

    def open_pending(self, path: Path) -> PendingFile:
        """Start a new large file.

        Raises:
            FileExistsError: There is one.
        """

    def read(self, path: Path) -> bytes:
        """The whole content.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def read_range(self, path: Path, start: int, length: int) -> bytes:
        """The bytes from `start` on; fewer than `length` if the file ends before.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def open_source(self, path: Path) -> str | pa.NativeFile:
        """The file for Arrow's readers: its address, or an open file.

        Raises:
            FileNotFoundError: The file does not exist; of an address the reader raises it.
        """

    def list_names(self, folder: Path) -> list[str]:
        """The names in a folder, in no order; empty without a folder."""

    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        """The files below a folder that match a pattern such as `*/*.parquet`, sorted."""

    def walk_files(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        """All files below a folder, at any depth, by their paths relative to it (`a/b.parquet`); in no order.

        One listing for any number of files: no request a file. Files that are deleted meanwhile may be left out.
        """

    def get_status(self, path: Path) -> FileStatus | None:
        """Size and time of a file; None if it is missing."""

    def get_own_status(self, path: Path) -> FileStatus | None:
        """Size and time of a regular file; None for a missing file, a link, a folder or a device."""

    def get_statuses(self, paths: Sequence[Path]) -> list[FileStatus | None]:
        """Those of several files, in their order."""
        return list(self.map_files(self.get_status, paths))

    def map_files(self, act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Apply `act` to each item, in their order; several run at the same time if each waits for a network.

        A few results are ahead of the consumer: they are in memory.
        """
        return map(act, items)

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""

    def delete(self, path: Path) -> int | None:
        """Delete a file; returns its bytes, or None if it was missing."""

    def delete_files(self, paths: Sequence[Path]) -> list[int | None]:
        """Delete several files; returns the bytes of each, or None for a missing file."""
        return list(map(self.delete, paths))

    def delete_folder(self, folder: Path) -> None:
        """Delete a folder with its content; a missing folder is not an error."""

    def delete_empty_folder(self, folder: Path) -> None:
        """Delete an empty folder, in one step; a folder with content stays, a missing folder is not an error."""

    def move(self, path: Path, target: Path) -> None:
        """Rename a file or a folder in the same storage, in one step that survives a power loss.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: A folder with files has the name; of several processes one succeeds.
        """

    def copy(self, path: Path, target: Path) -> None:
        """Copy a file, with the folders above the copy; it and its name survive a power loss."""

    def point(self, pointer: Path, target: Path) -> None:
        """Point a name at a folder next to it, in one step; readers see the old or the new folder."""

    def read_pointer(self, pointer: Path) -> Path | None:
        """The folder that a pointer names; None without a pointer."""

    def sync(self, path: Path) -> None:
        """Make a file that a library has written survive a power loss, with its name.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents.

        Raises:
            NotADirectoryError: One of them is a file.
        """

    def lock(self, path: Path) -> AbstractContextManager[None]:
        """Keep other processes out while a block runs; the end of the process ends it, too.

        Raises:
            BlockingIOError: Another process has it.
        """

    def uri(self, path: Path) -> str:
        """The address of a file or folder for libraries that open it themselves."""

    def open_arrow(self, folder: Path) -> SubTreeFileSystem:
        """The files below a folder for Arrow's threads, which read without Python."""

    def resolve(self, path: Path) -> Path:
        """The only address of a file or folder: two names of one have the same."""


class NeedsFileSystem(EnvironmentProblem):
    """An operation needs a feature that object stores lack: renaming a folder in one step, links, or locks.

    Attributes:
        path: The address in the store.
    """

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{to_uri(path)} is in an object store, which cannot {what}",
            next_step="use a folder of a file system for this; docs/object-stores.md lists what works",
        )
        self.path = path
