"""Verifies rows: a count and a sum of hashes that do not depend on order or on file splits.

Exactly, with all arithmetic modulo 2^64 and `mix` the SplitMix64 step of `benchmarks.workload`:

    word(string)  = first 8 bytes, little-endian, of its UTF-8 text's BLAKE2b hash of 8 bytes
    word(integer) = its two's complement; word(true) = 1, word(false) = 0
    word(float)   = its IEEE 754 bits as a double; -0.0 counts as 0.0
    hash(row)     = h after h = 0, then h = mix(h xor word(column)) for each column of COLUMNS
    digest        = number of rows, sum of hash(row)

A null has no word: a column with one is refused. Only rows of updates count: a `ColumnFold` emits those of snapshots,
too, which the other systems do not. `expected` computes the same from the generator
with Python's own json and integers, sharing no code with the systems, their message types or Arrow.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import workload
from benchmarks.workload import Size, Words, mix

PREVIOUS = tuple(f"previous_{name}" for name in workload.COLUMNS)
COLUMNS = ("_session", "_sequence", "id", *workload.COLUMNS, *PREVIOUS)
CAUSE = "_cause"
"""The column of lockstep with the hook that emitted a row."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Digest:
    """Digest of a set of rows.

    Attributes:
        rows: Number of rows.
        hash_sum: Sum of their hashes modulo 2^64.
    """

    rows: int
    hash_sum: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.hash_sum + other.hash_sum) & _MASK)

    def __str__(self) -> str:
        return f"{self.rows:,} rows {self.hash_sum:016x}"


def digest_of(folder: Path) -> Digest:
    """The digest of all rows in a folder of Parquet files.

    A Delta table's rows are those of the files that its newest version names; elsewhere they are
    those of all files.
    """
    total = Digest(0, 0)
    for file in _files(folder):
        opened = pq.ParquetFile(file)
        has_cause = CAUSE in opened.schema_arrow.names
        for batch in opened.iter_batches(columns=[*COLUMNS, CAUSE] if has_cause else list(COLUMNS)):
            updates: Any = batch.filter(pc.equal(batch.column(CAUSE), pa.scalar("update"))) if has_cause else batch
            total += digest_of_batch(updates)
    return total


def digest_of_batch(batch: pa.RecordBatch) -> Digest:
    """The digest of the rows of a batch, which has at least the columns of COLUMNS."""
    hashes: Words = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in COLUMNS:
        hashes = mix(hashes ^ _words(name, batch.column(name)))
    return Digest(batch.num_rows, int(hashes.sum(dtype=np.uint64)))


def expected(size: Size) -> Digest:
    """The digest of the right rows, directly from the generator. About 40 us a message."""
    rows = hash_sum = 0
    for row in _plain_fold(size):
        rows += 1
        hash_sum += plain_hash(row)
    return Digest(rows, hash_sum & _MASK)


def _files(folder: Path) -> list[Path]:
    if (folder / "_delta_log").is_dir():
        from deltalake import DeltaTable

        return [Path(unquote(uri.removeprefix("file://"))) for uri in DeltaTable(folder).file_uris()]
    return sorted(folder.rglob("*.parquet"))


def _words(name: str, column: pa.Array[Any]) -> Words:
    if column.null_count:
        raise ValueError(f"{column.null_count} null in column {name}: the workload has none")
    if pa.types.is_floating(column.type):
        return (column.to_numpy() + 0.0).view(np.uint64)  # adding 0.0 makes -0.0 to 0.0
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return column.cast(pa.int64()).to_numpy().view(np.uint64)
    encoded: Any = pc.dictionary_encode(column.cast(pa.string()))  # the stubs lack its parts
    distinct: Words = np.array([_text_word(text) for text in encoded.dictionary.to_pylist()], dtype=np.uint64)
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return distinct[codes]


def _text_word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _plain_fold(size: Size) -> Iterator[list[object]]:
    """The values of COLUMNS of every expected row."""
    tables: dict[str, dict[int, Mapping[str, object]]] = {}
    for block in workload.blocks(size):
        for _, value in block.messages:
            message = json.loads(value)
            if message["type"] == "snapshot":
                tables[message["session"]] = {row["id"]: row for row in message["rows"]}
                continue
            table = tables[message["session"]]
            for change in message["rows"]:
                previous = table[change["id"]]
                table[change["id"]] = new = {**previous, **change}
                values = [row[name] for row in (new, previous) for name in workload.COLUMNS]
                yield [message["session"], message["seq"], change["id"], *values]


def plain_hash(row: Sequence[object]) -> int:
    """hash(row) in Python integers: the same as Arrow's, by other code."""
    result = 0
    for value in row:
        result = _plain_mix(result ^ _plain_word(value))
    return result


def _plain_word(value: object) -> int:
    match value:
        case str():
            return _text_word(value)
        case int():  # and bool
            return value & _MASK
        case float():
            return int.from_bytes(struct.pack("<d", value + 0.0), "little")
    raise TypeError(f"no word for {value!r}")


def _plain_mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)
