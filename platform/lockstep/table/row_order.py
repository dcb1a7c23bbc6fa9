"""Segments of the rows of a partition, with their bounds.

Files contain several partitions, each sorted. So rows never need sorting: it is enough to sort the
segments of each partition by their offsets, and to refuse overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep.errors import TableError
from lockstep.model.position import TopicIdPartition

I64 = npt.NDArray[np.int64]

_PARTITION_BITS: Final = 32


class RowPlace(NamedTuple):
    """Position of a row inside its partition."""

    emit_offset: int
    row: int


class OutOfOrder(TableError):
    """Rows of a partition are not sorted by (emit offset, row).

    Attributes:
        topic_id: Topic id of the partition.
        partition: Its number.
        offset: Emit offset at which the order breaks.
    """

    def __init__(self, key: TopicIdPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"topic id {key[0]}, partition {key[1]}, emit offset {offset}: {problem}",
            next_step="nothing was written from these rows; compare the table with Kafka: `lockstep verify`",
        )
        self.topic_id, self.partition = key
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of some rows, one entry each in every array.

    Attributes:
        keys: The partitions that `key` refers to, in order.
        key: Index into `keys`.
        start: First row of the segment.
        length: Number of rows.
        first: Its least (emit offset, row), an array each.
        last: Its greatest (emit offset, row), an array each.
    """

    keys: tuple[TopicIdPartition, ...]
    key: I64
    start: I64
    length: I64
    first: tuple[I64, I64]
    last: tuple[I64, I64]

    def partition(self, segment: int) -> TopicIdPartition:
        """The partition of one segment."""
        return self.keys[int(self.key[segment])]

    def opens(self, segment: int) -> RowPlace:
        """The first row of one segment."""
        return RowPlace(int(self.first[0][segment]), int(self.first[1][segment]))

    def closes(self, segment: int) -> RowPlace:
        """The last row of one segment."""
        return RowPlace(int(self.last[0][segment]), int(self.last[1][segment]))

    def order(self) -> I64:
        """The order of the segments by partition and first row."""
        return np.lexsort((self.first[1], self.first[0], self.key))

    def taken(self, order: I64) -> Segments:
        """The segments in another order."""
        first = (self.first[0][order], self.first[1][order])
        last = (self.last[0][order], self.last[1][order])
        return Segments(self.keys, self.key[order], self.start[order], self.length[order], first, last)


def find_segments(rows: pa.Table, breaks: Sequence[int] = ()) -> Segments:
    """The segments of rows, which end at each change of partition and at `breaks`.

    Args:
        rows: At least one row.
        breaks: Row numbers at which another source starts.

    Raises:
        OutOfOrder: Inside a segment a row does not follow the previous row.
    """
    # Topic and partition as one number: changes of partition are found without comparing texts.
    topics: Any = rows.column("_topic_id").combine_chunks().dictionary_encode()
    codes = _integers(topics.indices) << _PARTITION_BITS | _integers(rows.column("_partition"))
    offsets = _integers(rows.column("_emit_offset"))
    numbers = _integers(rows.column("_row"))
    is_start = np.concatenate([[True], codes[1:] != codes[:-1]])
    is_start[list(breaks)] = True
    start = np.flatnonzero(is_start)
    distinct, key = np.unique(codes[start], return_inverse=True)
    keys = [_key(int(code), topics.dictionary) for code in distinct]
    _check_inside(offsets, numbers, is_start, lambda row: _key(int(codes[row]), topics.dictionary))
    end = np.append(start[1:], len(codes))
    segments = Segments(
        tuple(keys), key, start, end - start, (offsets[start], numbers[start]), (offsets[end - 1], numbers[end - 1])
    )
    return add_keys(segments, tuple(sorted(keys)))


def add_keys(segments: Segments, keys: tuple[TopicIdPartition, ...]) -> Segments:
    """The same segments, with keys that contain theirs."""
    place = {key: position for position, key in enumerate(keys)}
    moved = np.array([place[key] for key in segments.keys], np.int64)
    return Segments(keys, moved[segments.key], segments.start, segments.length, segments.first, segments.last)


def check_disjoint(ordered: Segments) -> None:
    """Check that each segment ends before the next of its partition starts.

    Raises:
        OutOfOrder: Two overlap: the same row twice, or ranges that interleave.
    """
    opens = ordered.first
    closes = ordered.last
    lower = closes[0][:-1] < opens[0][1:]
    level = (closes[0][:-1] == opens[0][1:]) & (closes[1][:-1] < opens[1][1:])
    wrong = np.flatnonzero((ordered.key[1:] == ordered.key[:-1]) & ~(lower | level))
    if len(wrong):
        segment = int(wrong[0]) + 1
        reached = ordered.closes(segment - 1)
        begins = ordered.opens(segment)
        problem = f"ranges overlap: one ends with {reached}, another starts with {begins}"
        raise OutOfOrder(ordered.partition(segment), begins.emit_offset, problem)


def _check_inside(offsets: I64, numbers: I64, is_start: npt.NDArray[np.bool_], key: Any) -> None:
    follows = (offsets[1:] > offsets[:-1]) | ((offsets[1:] == offsets[:-1]) & (numbers[1:] > numbers[:-1]))
    wrong = np.flatnonzero(~(follows | is_start[1:]))
    if len(wrong):
        row = int(wrong[0]) + 1
        raise OutOfOrder(key(row), int(offsets[row]), f"row {numbers[row]} is after offset {offsets[row - 1]}")


def _key(code: int, topics: pa.Array[Any]) -> TopicIdPartition:
    return TopicIdPartition(str(topics[code >> _PARTITION_BITS]), code & (1 << _PARTITION_BITS) - 1)


def _integers(values: Any) -> I64:
    return np.asarray(values, np.int64)
