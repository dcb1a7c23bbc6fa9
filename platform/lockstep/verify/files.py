"""Opens stored files for the proof, by other clients than those that wrote them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from lockstep.addresses import is_in_object_store, to_uri
from lockstep.store_clients import find_delta_options, make_arrow_client, repeat_broken_off


def open_table(folder: Path, *, version: int | None = None) -> DeltaTable:
    """A table as delta-rs reads it."""
    options = find_delta_options(folder)
    return repeat_broken_off(lambda: DeltaTable(to_uri(folder), version=version, storage_options=options))


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file; the system reads it with one thread, and ahead of nothing.

    Raises:
        OSError: There is none.
    """
    return pq.ParquetFile(_name(path), filesystem=_find_system(path), pre_buffer=False)


def find_size(path: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    found = _find_system(path).get_file_info(_name(path))
    return found.size if found.type is FileType.File else None


def _name(path: Path) -> str:
    return "/".join(path.parts[1:]) if is_in_object_store(path) else str(path)


def _find_system(path: Path) -> FileSystem:
    return make_arrow_client() if is_in_object_store(path) else LocalFileSystem()
