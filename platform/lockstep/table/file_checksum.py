"""Files whose names contain the checksum of all their bytes: any changed bit is detected.

Parquet has checksums of its pages only: of the flipped bytes of a ledger file, measured, five in a hundred were
read as other values, three of them in the footer, which contains names and types of columns.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.storage import find_storage

_SEALED = re.compile(r"-[0-9a-f]{32}-([0-9a-f]{8})\.parquet$")


def read_verified(path: Path, stream: str) -> bytes:
    """The content of a file, which matches the checksum in its name; files without one are not judged.

    Raises:
        TableError: It is missing, truncated, or any byte of it is wrong.
    """
    try:
        content = find_storage(path).read(path)
    except FileNotFoundError:
        raise _damaged(path, "is missing", stream) from None
    seal = _SEALED.search(path.name)
    # Parquet's checksums are of pages only: a flipped byte in the footer is read as another value.
    if seal is not None and zlib.crc32(content) != int(seal[1], 16):
        raise _damaged(path, "is not as it was written", stream)
    return content


def read_verified_rows(path: Path, stream: str, columns: list[str] | None = None) -> pa.Table:
    """The rows of such a file, by default all columns of it. Raises as `read_verified` does.

    The verified bytes themselves are read, by one thread: most files are of one batch, and have a few rows.
    """
    with pq.ParquetFile(pa.BufferReader(read_verified(path, stream)), pre_buffer=False) as parquet:
        return parquet.read(columns=columns, use_threads=False)


def iterate_verified_rows(path: Path, stream: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The rows of such a file, by default all columns of it, a row group at a time. Raises as `read_verified` does."""
    with pq.ParquetFile(pa.BufferReader(read_verified(path, stream)), pre_buffer=False) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, columns=columns, use_threads=False)


def _damaged(path: Path, problem: str, stream: str) -> TableError:
    return TableError(
        f"{path} {problem}; no position is read without it",
        next_step=f"put it back from a copy; `lockstep repair {stream}` checks all files of the stream",
    )
