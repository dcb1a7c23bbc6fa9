"""Digest of rows.

Exact definition, to recompute it independently:

- mix(x) is the finalizer of SplitMix64, arithmetic is modulo 2^64, G = 0x9E3779B97F4A7C15.
- A sequence of 64-bit numbers e_1 ... e_n hashes to mix(n + sum of mix(e_i + i * G)).
- A value is a number: integers, dates and timestamps by their two's complement, floats (as
  float64) by their bits, booleans 0 or 1, null 0xD6E8FEB86659FD93; strings (UTF-8) and bytes hash as the
  sequence of their bytes; a decimal of its low and high 64 bits; a list of its elements; a struct
  of its fields; a map of its (key, value) entries, each a sequence of two.
- A row is the sequence of its columns in the order of the schema; the digest is the sum of its rows.

Columns are hashed in blocks that fit a core's cache; strings once per distinct value of a block, or of a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U64 = npt.NDArray[np.uint64]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


_NULL = np.uint64(0xD6E8FEB86659FD93)


_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


_BLOCK_ROWS = 16_384
"""128 kB a column: two or three of them fit into a core's second-level cache."""


_BLOCK_TEXTS = 1_024
"""Each of their bytes takes five numbers of 64 bits while it is hashed: all texts of a dictionary at once would be
memory that the system allocates and frees each time."""


def digest_rows(rows: pa.Table) -> int:
    """The digest of rows, 0 for none; digests of parts add up modulo 2^64. Dictionaries count as their values."""
    total = 0
    for chunk in rows.to_batches():
        terms = [_prepare_terms(column, place) for place, column in enumerate(chunk.columns, 1)]
        for start in range(0, chunk.num_rows, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, chunk.num_rows)
            hashes = np.full(stop - start, len(terms), np.uint64)
            for term in terms:
                hashes += term(start, stop)
            total += int(_mix(hashes).sum(dtype=np.uint64))
    return total % 2**64


def hash_rows(rows: pa.RecordBatch) -> U64:
    """One 64-bit hash per row."""
    return _fields([_numbers(column) for column in rows.columns], rows.num_rows)


def _prepare_terms(values: pa.Array[Any], place: int) -> Callable[[int, int], U64]:
    """The terms of a column in the hashes of its rows; those of a dictionary are computed once per value."""
    salt = np.uint64(place * int(_GOLDEN) % 2**64)
    if not pa.types.is_dictionary(values.type):
        return lambda start, stop: _mix(_numbers(values.slice(start, stop - start)) + salt)
    coded: Any = values
    hashes = _mix(np.append(_hash_texts(coded.dictionary), _NULL) + salt)
    codes: npt.NDArray[np.int32] = coded.indices.fill_null(len(hashes) - 1).to_numpy(zero_copy_only=False)
    return lambda start, stop: hashes[codes[start:stop]]


def _mix(x: U64) -> U64:
    """SplitMix64's finalizer, in place."""
    first, second = _MULTIPLIERS
    x ^= x >> np.uint64(30)
    x *= first
    x ^= x >> np.uint64(27)
    x *= second
    x ^= x >> np.uint64(31)
    return x


def _fields(fields: list[U64], length: int) -> U64:
    """Hashes of sequences that all have the same number of elements, one array per element."""
    total = np.full(length, len(fields), np.uint64)
    place = np.uint64(0)
    with np.errstate(over="ignore"):
        for field in fields:
            place += _GOLDEN
            total += _mix(field + place)
    return _mix(total)


def _runs(elements: U64, offsets: npt.NDArray[np.int64]) -> U64:
    """Hashes of sequences of any length: elements [offsets[i], offsets[i + 1]) belong to the i-th."""
    lengths = np.diff(offsets)
    position = np.arange(1, len(elements) + 1) - np.repeat(offsets[:-1], lengths)
    terms = _mix(elements + position.astype(np.uint64) * _GOLDEN)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return _mix(lengths.astype(np.uint64) + sums[offsets[1:]] - sums[offsets[:-1]])


def _numbers(values: pa.Array[Any]) -> U64:
    """The number of each value."""
    numbers = _numbers_of_valid(values)
    if values.null_count:
        numbers[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return numbers


def _numbers_of_valid(values: Any) -> U64:
    """As `_numbers`, with an arbitrary number for a null value."""
    kind: pa.DataType = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_dictionary(kind):
        return _texts(values)
    if pa.types.is_struct(kind):
        return _fields([_numbers(field) for field in values.flatten()], len(values))
    if pa.types.is_list(kind):
        return _lists(values, values.values)
    if pa.types.is_map(kind):
        return _maps(values)
    if pa.types.is_decimal128(kind):
        return _decimals(values)
    return _fixed(values)


def _fixed(values: pa.Array[Any]) -> U64:
    kind: Any = values.type
    if pa.types.is_floating(kind):
        return _plain(values.cast(pa.float64()), np.float64).view(np.uint64)
    if pa.types.is_timestamp(kind):
        return _plain(values.view(pa.int64()), np.int64).view(np.uint64)
    if pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"no digest is defined for columns of type {kind}")
    return _plain(values.cast(pa.int64()), np.int64).view(np.uint64)


def _plain(values: pa.Array[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    filled = values
    if values.null_count:
        filled = values.fill_null(0)
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=kind)


def _texts(values: pa.Array[Any]) -> U64:
    encoded: Any = values
    if not pa.types.is_dictionary(values.type):
        encoded = values.dictionary_encode()  # each distinct text is hashed once
    # The null is behind the texts, at the place that null codes are filled with.
    hashes = np.append(_hash_texts(encoded.dictionary), _NULL)
    places: npt.NDArray[np.int32] = encoded.indices.fill_null(len(hashes) - 1).to_numpy(zero_copy_only=False)
    return hashes[places]


def _hash_texts(values: Any) -> U64:
    """Hashes of strings or bytes, none of them null."""
    large: Any = values.cast(pa.large_binary())
    blocks = [_hash_bytes(large.slice(start, _BLOCK_TEXTS)) for start in range(0, len(large), _BLOCK_TEXTS)]
    return np.concatenate([np.zeros(0, np.uint64), *blocks])


def _hash_bytes(large: Any) -> U64:
    _, offsets, data = large.buffers()
    ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return _runs(content.astype(np.uint64), ends - ends[0])


def _lists(values: Any, elements: pa.Array[Any]) -> U64:
    offsets = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    used = elements.slice(offsets[0], offsets[-1] - offsets[0])
    return _runs(_numbers(used), offsets - offsets[0])


def _maps(values: Any) -> U64:
    entries: Any = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
    return _lists(values, entries)


def _decimals(values: Any) -> U64:
    content = values.buffers()[1]
    if content is None:
        return np.zeros(len(values), np.uint64)
    words = np.frombuffer(content, np.uint64)[2 * values.offset : 2 * (values.offset + len(values))]
    return _fields([words[0::2], words[1::2]], len(values))


PROOF = "lockstep.proof"
"""Metadata of the commit of a compaction: its proof as JSON."""
