"""Proof that a file holds the rows of others, in order: counts, digests (`lockstep.table.row_digest`) and order."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa

from lockstep.errors import TableError
from lockstep.model.position import TopicIdPartition
from lockstep.table.row_digest import digest_rows
from lockstep.table.row_order import RowPlace, Segments


class Span(msgspec.Struct, frozen=True):
    """Rows of one partition: how many, the first and the last."""

    rows: int
    first: RowPlace
    last: RowPlace

    def joined(self, other: Span | None) -> Span:
        """The span of both."""
        if other is None:
            return self
        return Span(self.rows + other.rows, min(self.first, other.first), max(self.last, other.last))


class RowProof(msgspec.Struct, frozen=True):
    """The invariants of a compaction.

    Attributes:
        rows: Number of rows.
        digest: Sum of the rows' 64-bit hashes modulo 2^64, as `digest_rows` defines it.
        spans: The span of each partition.
    """

    rows: int = 0
    digest: int = 0
    spans: Mapping[TopicIdPartition, Span] = {}

    def joined(self, other: RowProof) -> RowProof:
        """The proof of both sets of rows together."""
        spans = dict(self.spans)
        spans |= {key: span.joined(self.spans.get(key)) for key, span in other.spans.items()}
        return RowProof(self.rows + other.rows, (self.digest + other.digest) % 2**64, spans)


class ProofDiffers(TableError):
    """A compacted file differs from its inputs.

    Attributes:
        before: Proof of the inputs.
        after: Proof of the output.
    """

    def __init__(self, before: RowProof, after: RowProof, what: str) -> None:
        super().__init__(
            f"the compacted file differs from its inputs: {what}",
            next_step="nothing was committed; check disk and memory of this machine, then compact again",
        )
        self.before = before
        self.after = after


def make_proof(rows: pa.Table, ordered: Segments) -> RowProof:
    """The proof of rows.

    Args:
        rows: The rows.
        ordered: Their segments, in order of partition and first row.
    """
    begin = np.flatnonzero(np.concatenate([[True], ordered.key[1:] != ordered.key[:-1]]))
    end = np.append(begin[1:], len(ordered.key)) - 1
    counts = np.add.reduceat(ordered.length, begin)
    bounds = zip(begin.tolist(), end.tolist(), counts.tolist(), strict=True)
    spans = {ordered.partition(i): Span(count, ordered.opens(i), ordered.closes(j)) for i, j, count in bounds}
    return RowProof(len(rows), digest_rows(rows), spans)


def compare_proofs(before: RowProof, after: RowProof) -> None:
    """Check that nothing changed.

    Raises:
        ProofDiffers: Names the first difference: rows, a partition's range, or values.
    """
    if before.rows != after.rows:
        raise ProofDiffers(before, after, f"{before.rows} rows became {after.rows}")
    for key in sorted(before.spans.keys() | after.spans.keys()):
        span_before = before.spans.get(key)
        span_after = after.spans.get(key)
        if span_before != span_after:
            difference = f"topic id {key[0]}, partition {key[1]}: {span_before} became {span_after}"
            raise ProofDiffers(before, after, difference)
    if before.digest != after.digest:
        raise ProofDiffers(before, after, f"digest {before.digest:016x} became {after.digest:016x}")
