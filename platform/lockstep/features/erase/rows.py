"""Rewrites data files without the rows of one session; all other rows stay as they are, in their order, proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, starmap
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.errors import TableError
from lockstep.model.position import TopicIdPartition
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.live_files import LiveFile
from lockstep.table.parquet import UNREADABLE, DataFile, DataFileWriter, explain_unreadable
from lockstep.table.row_digest import hash_rows
from lockstep.table.written_by import WrittenBy

_BLOCK_ROWS = 16_384
_BOUNDS = ("min._session", "max._session")


class WantedSession(msgspec.Struct, frozen=True):
    """The session to erase.

    Attributes:
        session: Its name.
        topic: Only in this topic; empty for all.
    """

    session: str
    topic: str = ""

    def match(self, rows: pa.Table) -> pa.ChunkedArray[Any]:
        """Which rows of a table are its rows."""
        is_meant: Any = pc.equal(rows["_session"], pa.scalar(self.session, pa.string()))
        if self.topic:
            is_meant = pc.and_(is_meant, pc.equal(rows["_topic"], pa.scalar(self.topic, pa.string())))
        # A null in a mask would drop the row from both sides of the split.
        matched: pa.ChunkedArray[Any] = is_meant.fill_null(False)  # noqa: FBT003  # a value
        return matched


class ErasedPlaces(msgspec.Struct, frozen=True):
    """The places of the erased rows of one partition: one element a row.

    Attributes:
        emit_offset: Emit offsets.
        row: Row numbers.
        offset: Offsets of their messages.
    """

    emit_offset: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]


class FileWithoutSession(msgspec.Struct, frozen=True):
    """A data file without the rows of a session.

    Attributes:
        source: The file that it replaces.
        output: The new file, synced; None if no row is left.
        erased: Places of the erased rows, by partition; a file may be named for several row groups.
    """

    source: LiveFile
    output: DataFile | None
    erased: tuple[tuple[TopicIdPartition, ErasedPlaces], ...]


def find_files_with(table: Path, files: Iterable[LiveFile], wanted: WantedSession) -> list[tuple[LiveFile, int]]:
    """The live files that hold rows of a session, with their number; the log's statistics rule out the others."""
    actions = pa.table(delta_log.open_delta_table(table).get_add_actions(flatten=True))
    names = [name for name in ("path", *_BOUNDS) if name in actions.column_names]
    bounds = {row["path"]: row for row in actions.select(names).to_pylist()}
    files_with_rows: list[tuple[LiveFile, int]] = []
    for file in files:
        if not _may_hold(bounds.get(file.path, {}), wanted.session):
            continue
        rows = 0
        for group in _read_groups(table / file.path, ["_session", "_topic"]):
            rows += int(pc.sum(wanted.match(group)).as_py() or 0)
        if rows:
            files_with_rows.append((file, rows))
    return files_with_rows


def _may_hold(bounds: dict[str, Any], session: str) -> bool:
    """By the bounds of the log, which are cut outwards; without them a file is read."""
    least, greatest = (bounds.get(name) for name in _BOUNDS)
    return (least is None or least <= session) and (greatest is None or session <= greatest)


def count_rows(table: Path, files: Iterable[LiveFile], wanted: WantedSession) -> Counter[TopicIdPartition]:
    """The rows of a session in some files, by partition."""
    counts = Counter[TopicIdPartition]()
    for file in files:
        for group in _read_groups(table / file.path, ["_session", "_topic", "_topic_id", "_partition"]):
            counts.update(_list_keys(group.filter(wanted.match(group))))
    return counts


def _list_keys(rows: pa.Table) -> list[TopicIdPartition]:
    """The partition of each row."""
    keys = zip(rows["_topic_id"].to_pylist(), rows["_partition"].to_pylist(), strict=True)
    return list(starmap(TopicIdPartition, keys))


def rewrite_without(table: Path, file: LiveFile, wanted: WantedSession, by: WrittenBy) -> FileWithoutSession:
    """Write a file again without the rows of a session; read it back and compare it row by row.

    1. Of each row group keep the other rows, in their order; note the places of the erased rows.
    2. Read the new file and compare the hash of each row with that of the row in its place.

    Args:
        table: Folder of the table.
        file: The file.
        wanted: The session.
        by: The batch that is the erasure: its label in the name tells clean-up when the file is an orphan.

    Raises:
        TableError: A file cannot be read, or the new file differs; it is removed.
    """
    erased: list[tuple[TopicIdPartition, ErasedPlaces]] = []
    before: list[npt.NDArray[np.uint64]] = []
    groups = (_split(group, wanted, erased) for group in _read_groups(table / file.path))
    output = _write(table, file, by, groups, before)  # 1
    if output is not None and not _is_same(table / output.path, before):  # 2
        find_storage(table).delete(table / output.path)
        raise TableError(
            f"{table / output.path} does not hold the other rows of {file.path}; nothing was committed",
            next_step="check disk and memory of this machine, then erase again",
        )
    if output is not None:  # its place in the order of the hour is that of the other file
        output = msgspec.structs.replace(output, added_ms=file.added_ms)
    return FileWithoutSession(file, output, tuple(erased))


def _split(group: pa.Table, wanted: WantedSession, erased: list[tuple[TopicIdPartition, ErasedPlaces]]) -> pa.Table:
    """The other rows of a row group."""
    mask = wanted.match(group)
    names = ["_topic_id", "_partition", "_emit_offset", "_row", "_offset"]
    out = group.select(names).filter(mask)
    for key in sorted(set(_list_keys(out))):
        is_of_topic = pc.equal(out["_topic_id"], pa.scalar(key[0]))
        is_of_partition = pc.equal(out["_partition"], pa.scalar(key[1], pa.int32()))
        here = out.filter(pc.and_(is_of_topic, is_of_partition))
        erased.append((key, ErasedPlaces(*(_to_numbers(here[name]) for name in names[2:]))))
    return group.filter(pc.invert(mask))


def _to_numbers(column: pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _write(
    table: Path, file: LiveFile, by: WrittenBy, groups: Iterator[pa.Table], hashes: list[npt.NDArray[np.uint64]]
) -> DataFile | None:
    first = next((group for group in groups if len(group)), None)
    if first is None:
        return None
    prefix = f"{PurePosixPath(file.path).name.partition('-')[0]}-{by.label}"  # a compacted file stays compacted
    with DataFileWriter(table, first.schema, commit_hour=file.commit_hour, prefix=prefix) as writer:
        for group in filter(len, chain([first], groups)):
            writer.write(group)
            hashes.append(_hash(group))
        return writer.finish()


def _is_same(path: Path, before: list[npt.NDArray[np.uint64]]) -> bool:
    """Whether a file holds rows of these hashes, in this order."""
    after = [_hash(group) for group in _read_groups(path)]
    # Numpy does not concatenate an empty list.
    if not after:
        return not before
    return np.array_equal(np.concatenate(after), np.concatenate(before))


def _hash(rows: pa.Table) -> npt.NDArray[np.uint64]:
    blocks = [hash_rows(block) for block in rows.to_batches(max_chunksize=_BLOCK_ROWS)]
    if not blocks:
        return np.zeros(0, np.uint64)
    return np.concatenate(blocks)


def _read_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(find_storage(path).open_source(path), pre_buffer=False) as parquet:
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, columns=columns, use_threads=False)
    except UNREADABLE as error:
        raise explain_unreadable(path, error) from error
