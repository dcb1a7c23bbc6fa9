"""Opens stored files for the proof, by other clients than those that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from lockstep.addresses import is_in_object_store, to_uri
from lockstep.errors import TableError
from lockstep.store_clients import ask_ahead, find_delta_options, open_arrow_client, repeat_broken_off

T = TypeVar("T")
R = TypeVar("R")

READ_WHOLE_BYTES: Final = 8 * 1024 * 1024
"""Smaller objects are read by one request instead of one for each column: a ledger file of a batch by 2, not by 68."""


def open_table(folder: Path, *, version: int | None = None) -> DeltaTable:
    """A table as delta-rs reads it."""
    options = find_delta_options(folder)
    return repeat_broken_off(lambda: DeltaTable(to_uri(folder), version=version, storage_options=options))


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file; the system reads it with one thread, and ahead of nothing.

    Raises:
        OSError: There is none.
    """
    source = _find_system(path).open_input_file(_name(path))
    # One request instead of several for footer and columns.
    if is_in_object_store(path) and source.size() <= READ_WHOLE_BYTES:
        source = pa.BufferReader(source.read_buffer())
    return pq.ParquetFile(source, pre_buffer=False)


UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Raised if the bytes of a file are not Parquet, and also if they cannot be read: see `require_bytes`."""


def open_if_there(path: Path) -> pq.ParquetFile | None:
    """A Parquet file; None if the file is missing or is not Parquet.

    Raises:
        TableError: Its bytes cannot be read.
    """
    if find_size(path) is None:
        return None
    try:
        return open_parquet(path)
    except UNREADABLE as error:
        require_bytes(path, error)
        return None


def require_bytes(path: Path, error: Exception) -> None:
    """After an error at a file: return if it is due to its content.

    Raises:
        FileNotFoundError: The file was deleted.
        TableError: Its bytes cannot be read, or memory lacks.
    """
    if isinstance(error, MemoryError):  # also of Arrow: it proves nothing about the file
        raise TableError(
            f"{path} cannot be read for lack of memory: {str(error).strip()}",
            next_step="repeat the command with more memory; a size that no machine has is due to a damaged file",
        ) from error
    try:
        with _find_system(path).open_input_file(_name(path)) as source:
            # If all bytes can be read, the error is due to the content; else disk or store fail.
            while source.read(READ_WHOLE_BYTES):
                pass
    except FileNotFoundError:
        raise
    except OSError:
        raise TableError(
            f"{path} cannot be read: {str(error).splitlines()[0]}",
            next_step="lockstep doctor checks disk and object store; then repeat the command",
        ) from error


def ask_each(folder: Path, ask: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Apply `ask` to some files of a folder, in their order; in an object store to several at a time."""
    if is_in_object_store(folder):
        return ask_ahead(ask, items)
    return map(ask, items)


def find_size(path: Path) -> int | None:
    """Bytes of a file; None if it is missing."""
    info = _find_system(path).get_file_info(_name(path))
    return info.size if info.type is FileType.File else None


def _name(path: Path) -> str:
    if is_in_object_store(path):
        return "/".join(path.parts[1:])
    return str(path)


def _find_system(path: Path) -> FileSystem:
    if is_in_object_store(path):
        return open_arrow_client()
    return LocalFileSystem()
