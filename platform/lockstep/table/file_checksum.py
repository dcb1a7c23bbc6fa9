"""Files whose names contain the checksum of all their bytes: any changed bit is detected.

Parquet has checksums of its pages only: of the flipped bytes of a ledger file, measured, five in a hundred were
read as other values, three of them in the footer, which contains names and types of columns.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import msgspec

from lockstep.errors import TableError
from lockstep.storage import find_storage
from lockstep.table.parquet import DataFile

_SEALED = re.compile(r"-[0-9a-f]{32}-([0-9a-f]{8})\.parquet$")


def with_checksum(table: Path, file: DataFile) -> DataFile:
    """The finished file renamed with its checksum."""
    path, storage = table / file.path, find_storage(table)
    name = f"{path.stem}-{zlib.crc32(storage.read(path)):08x}.parquet"
    storage.move(path, path.with_name(name))
    return msgspec.structs.replace(file, path=str(Path(file.path).with_name(name)))


def verify(path: Path, stream: str) -> None:
    """Refuse a file that does not match the checksum in its name; files without one are not judged.

    Raises:
        TableError: It is missing, truncated, or any byte of it is wrong.
    """
    try:
        content = find_storage(path).read(path)
    except FileNotFoundError:
        raise _damaged(path, "is missing", stream) from None
    seal = _SEALED.search(path.name)
    if seal is not None and zlib.crc32(content) != int(seal[1], 16):
        raise _damaged(path, "is not as it was written", stream)


def _damaged(path: Path, problem: str, stream: str) -> TableError:
    return TableError(
        f"{path} {problem}; no position is read without it",
        next_step=f"put it back from a copy; `lockstep repair {stream}` looks at all files of the stream",
    )
