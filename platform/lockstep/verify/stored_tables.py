"""The tables of a stream as a proof reads them: files, side tables and rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from lockstep.model.position import TopicIdPartition
from lockstep.table.head import Head, QuarantineRetention, SideFile
from lockstep.verify.ledger import StoredRanges
from lockstep.verify.row_spool import PartitionRows

COMPACTED = "compacted-"
"""Prefix of the names of compacted files; repeated here, because the proof shares no code with the engine."""
NamedFiles = dict[int, tuple[SideFile, ...]]
"""By batch: no two generations use the same number."""


class StoredFile(msgspec.Struct, frozen=True):
    """A live file of a table, according to its log.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        rows: Number of rows.
        hour: Its commit hour; empty in a side table.
        at: Its row in the statistics of all files.
    """

    path: str
    size: int
    rows: int
    hour: str = ""
    at: int = 0


class BatchStamp(NamedTuple):
    """Generation and commit hour of a batch, from its commit; most batches share theirs."""

    generation: int
    hour: str


class CommittedSideFiles(msgspec.Struct):
    """The side files that the output table's commits name.

    Attributes:
        ledger: The ledger file of each batch.
        quarantine: The quarantine files of each batch that has any.
        late: Those of the late table.
        first_version: Oldest entry still in the log; older entries were cleaned up.
        begins: The first batch of each file of several batches, by path.
        stamps: Of each batch.
    """

    ledger: NamedFiles
    quarantine: NamedFiles
    late: NamedFiles
    first_version: int
    begins: dict[str, int]
    stamps: dict[int, BatchStamp] = {}

    def find_begin(self, batch: int, files: Iterable[SideFile]) -> int:
        """The first batch of the files of a commit."""
        return min(self.begins.get(file.path, batch) for file in files)


class SideTable(msgspec.Struct):
    """A side table at the version that was read.

    Attributes:
        name: "ledger", "quarantine" or "late".
        folder: Its path.
        files: Its live files, by path.
        held: The newest batch that it contains, according to itself.
        columns: Their types.
    """

    name: str
    folder: Path
    files: dict[str, StoredFile]
    held: int
    columns: dict[str, object]


class StoredTables(msgspec.Struct):
    """Everything read from a stream's tables.

    Attributes:
        version: Version of the output table.
        head: Its head; the proof ends at the head's batch.
        data_files: Live files of the output table.
        statistics: The log's statistics of the columns of each file.
        absent: Columns that were added to it, each with the last batch before it.
        ledger: Ledger rows up to the head, without those of rewound generations, by partition.
        ledger_rows: How many.
        quarantine: Quarantine rows, likewise, in order of their offsets.
        late: Rows of the late table, likewise.
        retention: Which quarantine and late rows are dropped; those of its batches that are left are not compared.
        stamps: Of each batch, as far as its log has its commit.
        checked: Number of compared side files.
        notes: Limits of the comparison.
    """

    version: int
    head: Head
    data_files: list[StoredFile]
    statistics: pa.Table
    absent: dict[str, int]
    ledger: dict[TopicIdPartition, StoredRanges]
    ledger_rows: int
    quarantine: dict[TopicIdPartition, PartitionRows]
    late: dict[TopicIdPartition, PartitionRows]
    retention: QuarantineRetention
    stamps: dict[int, BatchStamp]
    checked: int
    notes: list[str]


NOTHING_DROPPED = QuarantineRetention(hour="", batch=0, at=0.0, cause="")
