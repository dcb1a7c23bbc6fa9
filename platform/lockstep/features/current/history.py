"""The history of a stream up to which its current table holds the rows, and when it has to be made again. Pure."""

from __future__ import annotations

from enum import Enum

import msgspec

from lockstep.table.follower_positions import SourceHistory
from lockstep.table.head import Head

BUCKET_ROWS = 50_000
"""Rows of a bucket, about: the least that a refresh rewrites."""
GROWN_RATIO = 4
"""Growth of the buckets after which the rows are divided again."""


class RemakeCause(Enum):
    """Why a current table is made from the states of all sessions."""

    NEW = "it has no rows yet"
    ASKED = "it was asked for"
    COLUMNS = "its columns have changed"
    CODE = "the code of the fold has changed, which may change states without a row"
    FOREIGN = "another tool wrote its newest version"
    REPLACED = "the table of the stream is another table, or was restored from a copy"
    UNDONE = "batches that it holds were undone"
    PROMOTED = "a shadow was promoted"
    ERASED = "a session was erased"
    FORGOTTEN = "a topic was forgotten, with its states"
    EXPIRED = "the table no longer has all rows since the last refresh"
    MANY = "reading the rows since the last refresh takes longer"
    GROWN = "its files have grown"


class CurrentBase(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a version of a current table: its rows are those of the states after a batch.

    Attributes:
        history: The history of the stream up to that batch.
        code: The code that wrote the batch, and that of the process which made the table from the states.
        promotion: Batch of the newest promotion; 0 without one.
        hour: Commit hour of the batch.
        buckets: Number of buckets.
        rows: Number of rows.
        key: Columns of the key.
        removed: The column that is null in the row of a removed key.
        values: Columns of the value.
    """

    history: SourceHistory
    code: str
    promotion: int
    hour: str
    buckets: int
    rows: int
    key: tuple[str, ...]
    removed: str
    values: tuple[str, ...]


def find_remake(base: CurrentBase, head: Head, version: int, token: str, code: str) -> RemakeCause | None:
    """Find out why the rows since the base do not lead to the states of now; None if they do.

    Args:
        base: The metadata of the current table.
        head: The head of the table of the stream.
        version: Its version.
        token: Token of the log entry that the table has now at the version of the base; empty if it is unknown.
        code: The code of now, as in the base.
    """
    read = base.history
    erasure = 0 if head.erasure is None else head.erasure.batch
    dropped = 0 if head.retention is None else head.retention.batch
    is_ahead = read.version > version or (read.batch_generation == head.generation and read.batch > head.batch)
    is_other = read.table_id != head.table_id or bool(token and token != read.token)
    causes = {
        RemakeCause.REPLACED: is_ahead or is_other,
        RemakeCause.ERASED: read.erasure != erasure,
        RemakeCause.UNDONE: read.batch > head.valid_batches.get(read.batch_generation, 0),
        RemakeCause.PROMOTED: base.promotion != find_promotion(head),
        RemakeCause.CODE: base.code != code,
        RemakeCause.EXPIRED: dropped > read.batch,
        RemakeCause.GROWN: base.rows > GROWN_RATIO * BUCKET_ROWS * base.buckets,
    }
    return next((cause for cause, holds in causes.items() if holds), None)


def find_promotion(head: Head) -> int:
    """The batch of the newest promotion; 0 without one."""
    return 0 if head.promotion is None else head.promotion.batch


def choose_buckets(rows: int) -> int:
    """The number of buckets for a number of rows."""
    return max(1, -(-rows // BUCKET_ROWS))
