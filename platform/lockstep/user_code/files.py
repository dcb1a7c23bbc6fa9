"""The files of a project that belong to its code, and their digest.

Code is each Python file in the project's folder, each folder there that holds Python files, with everything in it, and
`pyproject.toml`. Settings, tables, tests, hidden files and caches are not. Of all else in the project's folder, such as
links to data and folders of other users, nothing is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from lockstep.errors import LockstepError

NOT_CODE = frozenset({"__pycache__", "node_modules", "tests"})
"""Folders that are not copied; those of version control, environments and caches are hidden."""
ENVIRONMENT = "pyvenv.cfg"
"""A folder with this file is a virtual environment."""
PROJECT_FILE = "pyproject.toml"
COMPILED = (".pyc", ".pyo")
FILES_MAX = 20_000
BYTES_MAX = 256_000_000
READS_MAX = 5
PAUSE_SECONDS = 0.3
"""Pause before files that changed meanwhile are read again: a checkout writes for about a second."""
PYTHON_LEVELS = 3
"""Levels of folders, from that of the project's folder, in which Python files make a folder code."""


class CodeUnusable(LockstepError):
    """The code of a project cannot be copied.

    Attributes:
        path: The file or folder.
    """

    def __init__(self, path: Path | str, problem: str, next_step: str) -> None:
        super().__init__(f"the code of this project cannot be copied: {str(path)!r} {problem}", next_step=next_step)
        self.path = str(path)


class FileStamp(msgspec.Struct, frozen=True):
    """The stamp by which a change of a file is seen.

    Attributes:
        size: In bytes.
        modified_ns: Time of the last change of its bytes, in nanoseconds since 1970.
        changed_ns: Time of the last change of its bytes, name or mode.
        inode: Its number in the file system.
        mode: Its permissions.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    mode: int


class CodeFiles(msgspec.Struct, frozen=True):
    """The code of a project at one moment.

    Attributes:
        contents: The bytes of each file, by its path from the folder, with `/`.
        digest: SHA-256 of paths and bytes.
        modes: The permissions of each file; by default all may read it.
    """

    contents: Mapping[str, bytes]
    digest: str
    modes: Mapping[str, int] = {}


def read_code(folder: Path, excluded: Collection[Path] = ()) -> CodeFiles:
    """Read the code of a project as it was at one moment.

    Args:
        folder: The project's folder.
        excluded: Folders that are not read, such as those of tables.

    Raises:
        CodeUnusable: There is none, or too much of it; a link leads out of the folder; a file is neither file nor
            folder, or changes while it is read.
    """
    changed = ""
    for attempt in range(READS_MAX):
        time.sleep(PAUSE_SECONDS if attempt else 0)
        try:
            stamps = list_code(folder, excluded)
            contents = {name: (folder / name).read_bytes() for name in stamps}
            stamps_after = list_code(folder, excluded)
        except PermissionError as error:
            step = "let this user read it, or move it out of the folders with Python files"
            raise CodeUnusable(error.filename, "may not be read by this user", step) from error
        except FileNotFoundError as gone:
            changed = str(gone.filename)
            continue
        if stamps == stamps_after:
            modes = {name: stamp.mode for name, stamp in stamps.items()}
            return CodeFiles(contents, digest_contents(contents), modes)
        names = {**stamps, **stamps_after}
        changed = next(name for name in names if stamps.get(name) != stamps_after.get(name))
    raise CodeUnusable(folder / changed, "changes while it is read", "repeat the command when nothing writes there")


def digest_contents(contents: Mapping[str, bytes]) -> str:
    """SHA-256 of paths and bytes, each with its length, in the order of the paths."""
    digest = hashlib.sha256()
    for name in sorted(contents, key=os.fsencode):
        for part in (os.fsencode(name), contents[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def list_code(folder: Path, excluded: Collection[Path] = ()) -> dict[str, FileStamp]:
    """The files of the code with their stamps, by their path from the folder.

    Args:
        folder: The project's folder.
        excluded: Folders that are not read.

    Raises:
        CodeUnusable: As `read_code`.
    """
    stamps: dict[str, FileStamp] = {}
    size = 0
    for name, status in _Walk(folder, excluded).iterate():
        mode = stat.S_IMODE(status.st_mode)
        stamps[name] = FileStamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, mode)
        size += status.st_size
        if len(stamps) > FILES_MAX or size > BYTES_MAX:
            limit = f"{FILES_MAX:,} files or {BYTES_MAX // 1_000_000} MB"
            step = f"move data out of the folders with Python files; the limit was passed at {name!r}"
            raise CodeUnusable(folder, f"has more than {limit} of code", step)
    if not stamps:
        step = "run lockstep from the folder that holds definitions.py"
        raise CodeUnusable(folder, "has no Python files", step)
    return stamps


class _Walk:
    """A walk through the code of a project's folder."""

    def __init__(self, folder: Path, excluded: Collection[Path]) -> None:
        self._folder = folder
        self._root = folder.resolve()
        self._excluded = {os.path.realpath(path) for path in excluded}

    def iterate(self) -> Iterator[tuple[str, os.stat_result]]:
        """Each file of the code, by its path from the folder.

        Raises:
            CodeUnusable: A file of the code is not a file of the project.
        """
        for entry in _scan(self._folder):
            is_python = entry.name == PROJECT_FILE or entry.name.endswith(".py")
            if entry.is_dir():
                yield from self._iterate_folder_of_project(entry)
            elif is_python:
                yield entry.name, _examine(self._root, entry)

    def _iterate_folder_of_project(self, entry: os.DirEntry[str]) -> Iterator[tuple[str, os.stat_result]]:
        folder = Path(entry.path)
        levels = 1 if entry.is_symlink() else PYTHON_LEVELS
        if self._is_excluded(folder) or not _holds_python(folder, levels):
            return
        _examine(self._root, entry)  # refuses a link to code
        yield from self._iterate_code(folder, entry.name)

    def _iterate_code(self, folder: Path, name: str) -> Iterator[tuple[str, os.stat_result]]:
        """All files below a folder of code."""
        for entry in _scan(folder):
            if self._is_excluded(Path(entry.path)):
                continue
            status = _examine(self._root, entry)
            below = f"{name}/{entry.name}"
            if not stat.S_ISDIR(status.st_mode):
                yield below, status
            elif not (Path(entry.path) / ENVIRONMENT).exists():
                yield from self._iterate_code(Path(entry.path), below)

    def _is_excluded(self, folder: Path) -> bool:
        return bool(self._excluded) and os.path.realpath(folder) in self._excluded


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """The entries that may be code."""
    try:
        with os.scandir(folder) as entries:
            in_order = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    except FileNotFoundError:
        return []  # it is gone: the second list shows that
    return [entry for entry in in_order if not entry.name.startswith(".") and not _is_derived(entry.name)]


def _is_derived(name: str) -> bool:
    return name in NOT_CODE or name.endswith(COMPILED)


def _holds_python(folder: Path, levels: int) -> bool:
    """Whether a folder of the project is code: it is not an environment, and has a Python file within some levels.

    A folder that this user may not read is not code.
    """
    try:
        if (folder / ENVIRONMENT).exists():
            return False
        entries = _scan(folder)
    except PermissionError:
        return False
    if any(entry.name.endswith(".py") and not entry.is_dir(follow_symlinks=False) for entry in entries):
        return True
    if levels <= 1:
        return False
    folders = (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    return any(_holds_python(inner, levels - 1) for inner in folders)


def _examine(root: Path, entry: os.DirEntry[str]) -> os.stat_result:
    """The status of a file or folder; of a link, that of its file.

    Raises:
        CodeUnusable: It is anything else.
    """
    step = "copy the file into the project, or remove it"
    if entry.is_symlink():
        target = Path(entry.path).resolve()
        if not target.is_relative_to(root) or not target.is_file():
            raise CodeUnusable(entry.path, f"is a link to {str(target)!r}, outside of the files of the project", step)
    status = Path(entry.path).stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise CodeUnusable(entry.path, "is neither a file nor a folder", step)
    return status
