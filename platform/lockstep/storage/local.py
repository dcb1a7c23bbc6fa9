"""Files of a file system: the tables in a folder, and the scratch files of a process."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from typing_extensions import Buffer, override

from lockstep.errors import EnvironmentProblem
from lockstep.storage.base import FileStatus, NotWritten, PendingFile, Storage

if TYPE_CHECKING:
    from pyarrow.fs import SubTreeFileSystem


class LocalStorage(Storage):
    """A folder of a file system with atomic rename, exclusive creation and fsync: see `lockstep doctor`."""

    @property
    @override
    def poll_factor(self) -> float:
        return 1.0

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
        draft = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
        with _name_in_errors(path):
            draft.write_bytes(content)
            draft.replace(path)

    @override
    def overwrite(self, path: Path, content: bytes) -> None:
        with _name_in_errors(path):
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(descriptor, content, 0)
            finally:
                os.close(descriptor)

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
            present = os.fstat(file.fileno()).st_size - start  # else `length` bytes of memory are taken for any file
            return os.pread(file.fileno(), max(0, min(length, present)), start)

    @override
    def open_source(self, path: Path) -> str:
        return str(path)

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
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStatus(status.st_size, status.st_mtime)

    @override
    def get_own_status(self, path: Path) -> FileStatus | None:
        try:
            return _to_own_status(path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return None

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
        while folder.exists():  # of two deletions one stops at a file that the other has deleted
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
        draft = pointer.with_name(f"{pointer.name}.{uuid.uuid4().hex}.tmp")
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error

    @override
    @contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    @override
    def uri(self, path: Path) -> str:
        return str(path)

    @override
    def open_arrow(self, folder: Path) -> SubTreeFileSystem:
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # heavy; only reads of whole tables pay for it

        return SubTreeFileSystem(str(folder), LocalFileSystem())

    @override
    def resolve(self, path: Path) -> Path:
        return path.resolve()


class _NamedFile(FileIO):
    """A file whose failed writes name it, unlike those of Python's own."""

    @override
    def write(self, content: Buffer, /) -> int:
        with _name_in_errors(Path(str(self.name))):
            return super().write(content)


class LocalPendingFile(PendingFile):
    """A file under its final name, which is unique: nothing refers to it, and the rest of a crash is cleaned up."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._path = path
        self._sink = BufferedWriter(_NamedFile(path, "xb"))

    @property
    @override
    def sink(self) -> BinaryIO:
        return self._sink

    @property
    @override
    def is_open(self) -> bool:
        return not self._sink.closed

    @override
    def finish(self, name: str | None = None) -> int:
        self._sink.flush()
        with _name_in_errors(self._path):
            os.fsync(self._sink.fileno())
        size = self._sink.tell()
        if name is not None:
            self._path = self._path.rename(self._path.with_name(name))
        _sync(self._path.parent)
        self._sink.close()
        return size

    @override
    def abandon(self) -> None:
        if self.is_open:
            with suppress(OSError):  # the buffered bytes may not fit on the disk, and are not needed
                self._sink.close()
            self._path.unlink(missing_ok=True)


def _read_status(entry: os.DirEntry[str]) -> FileStatus | None:
    """Size and time of a listed file; None if it is not a file, or is gone."""
    try:
        return _to_own_status(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return None


def _to_own_status(status: os.stat_result) -> FileStatus | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileStatus(status.st_size, status.st_mtime)


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


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for this user alone, with any umask.

    Raises:
        OSError: It cannot be made.
    """
    for part in reversed((folder, *folder.parents)):
        if not part.exists():
            part.mkdir(mode=stat.S_IRWXU, exist_ok=True)  # `parents=True` would make those with the usual mode


def require_own_folder(folder: Path) -> None:
    """Check that no other user has made a folder, or one above, under its name in a place such as `/tmp`.

    Raises:
        EnvironmentProblem: One has: that user could put other files in place of those that are kept there.
    """
    for part in (folder, *folder.parents):
        with suppress(OSError):  # an unreadable folder fails when it is used
            is_shared = part.parent.stat().st_mode & stat.S_ISVTX
            owner = part.lstat().st_uid
            if is_shared and owner not in {0, os.geteuid()}:
                raise EnvironmentProblem(
                    f"{part} belongs to another user (uid {owner}), who could replace its files",
                    next_step="set local_root to a folder of the user that runs lockstep",
                )


def require_writable_folder(folder: Path) -> None:
    """Check that this user can write a folder, or make it.

    Raises:
        EnvironmentProblem: It cannot: another user has made the folder, or one above, as root does in `/tmp`.
    """
    nearest = next(part for part in (folder, *folder.parents) if os.path.lexists(part))
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        raise EnvironmentProblem(
            f"{folder} cannot be written by this user (uid {os.geteuid()}): {nearest} is another user's, or read-only",
            next_step="set local_root to a folder of the user that runs lockstep",
        )


class Scratch(msgspec.Struct, frozen=True):
    """A folder for files of one process on its own machine; nothing of them is left after a kill.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @contextmanager
    def open_file(self, prefix: str) -> Iterator[tuple[BufferedWriter, Path]]:
        """A file to write and to map; its name is gone after the block, its pages stay while they are mapped."""
        make_private_folder(self.folder)
        number, name = tempfile.mkstemp(dir=self.folder, prefix=prefix)
        try:
            with os.fdopen(number, "wb") as file:
                yield file, Path(name)
        finally:
            Path(name).unlink()
