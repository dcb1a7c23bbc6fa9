"""Names of files in a manifest, a claim or an address of state: untrusted until they are checked here.

Every reader of such names asks `find_named_files` before it opens, writes or deletes anything under one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.storage.base import FileStatus
from lockstep.storage.find import find_storage

PART_BYTES_MAX = 255
NAME_BYTES_MAX = 1_024
"""The longest name in a usual file system, and the longest key in S3."""
SHOWN_MAX = 100


class PathRefused(LockstepError):
    """A manifest names a file that is not one of its folder, or whose size is not possible; nothing was written.

    Attributes:
        folder: The folder of the manifest.
        name: The name of the file.
        reason: The fault of the name.
    """

    def __init__(self, folder: Path, name: str, reason: str) -> None:
        text = ascii(name[:SHOWN_MAX]) + ("..." if len(name) > SHOWN_MAX else "")
        step = "nothing was written; use a copy in a folder that no other user can write"
        super().__init__(f"{folder}: the file {text} is refused: {reason}", next_step=step)
        self.folder = folder
        self.name = name
        self.reason = reason


def find_fault(name: str) -> str:
    """Why a name is not a plain path below a folder; empty for a plain path. Pure."""
    parts = name.split("/")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "it is not a valid text"
    if "\0" in name:
        return "it has a NUL character"
    if name.startswith("/"):
        return "it is an absolute path"
    if not {"", ".", ".."}.isdisjoint(parts):
        return "a part of it is empty, '.' or '..'"
    if max(lengths) > PART_BYTES_MAX or sum(lengths) + len(parts) > NAME_BYTES_MAX:
        return "it is too long"
    return ""


def find_named_files(folder: Path, names: Iterable[str], *, below: str = "") -> dict[str, FileStatus | None]:
    """The status of each named file; None unless it is a regular file: missing, a link or a device.

    The folder itself may be a link: its user has named it.

    Args:
        folder: The folder of the manifest.
        names: The paths of the files.
        below: The folder in it to which they are relative; a link is none.

    Raises:
        PathRefused: A name is not a plain relative path, is named twice, or has a folder that is a link.
    """
    distinct = dict[str, None]()
    for name in names:
        fault = find_fault(name)
        if fault:
            raise PathRefused(folder, name, fault)
        if name in distinct:
            raise PathRefused(folder, name, "it is named twice")
        distinct[name] = None
    storage = find_storage(folder)
    root = storage.resolve(folder)
    one_of_folder = {name.rpartition("/")[0]: name for name in distinct}  # each folder is resolved once
    for above, name in one_of_folder.items():
        if storage.resolve(folder / below / above) != root / below / above:
            raise PathRefused(folder, name, "a folder of it is a link")
    statuses = storage.map_files(lambda name: storage.get_own_status(folder / below / name), distinct)
    return dict(zip(distinct, statuses, strict=True))


def read_named_file(folder: Path, name: str, bytes_max: int) -> bytes:
    """The content of a small file that must be one of its folder.

    Raises:
        FileNotFoundError: No regular file has this name.
        PathRefused: Its name leads elsewhere, or it has more bytes.
    """
    status = find_named_files(folder, [name])[name]
    if status is None:
        raise FileNotFoundError(folder / name)
    if status.size > bytes_max:
        raise PathRefused(folder, name, f"it has {status.size} bytes, at most {bytes_max} are expected")
    return find_storage(folder).read_range(folder / name, 0, bytes_max)
