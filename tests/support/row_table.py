"""Delta tables of one row type; each `add` writes a file with its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from lockstep.model.table_schema import make_table_schema, to_delta
from lockstep.table.parquet import ColumnStatistics, compute_file_statistics, find_written_columns
from lockstep.table.row_encoder import PartitionRun, Provenance, RowsBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import msgspec

HOUR = "2026-01-01T00"


class RowTable:
    """A Delta table of one row type; each `add` commits one file."""

    def __init__(self, folder: Path, row_type: type[msgspec.Struct]) -> None:
        self.folder = folder
        self._builder = RowsBuilder(row_type)
        self._schema = to_delta(make_table_schema(row_type))
        self._partition = folder / f"commit_hour={HOUR}"
        self._partition.mkdir(parents=True)
        DeltaTable.create(folder, self._schema, partition_by=["commit_hour"])

    def add(self, rows: Sequence[msgspec.Struct]) -> str:
        """Write and commit one file of these rows, and return its statistics."""
        batch = self._builder.build(rows, proof_of(len(rows)))
        path = self._partition / f"{len(list(self._partition.iterdir()))}.parquet"
        columns = find_written_columns(batch.schema)
        seen = ColumnStatistics(batch.schema)
        with pq.ParquetWriter(
            path,
            batch.schema,
            compression="zstd",
            use_dictionary=columns.use_dictionary,  # type: ignore[arg-type]  # the stubs forget lists
            write_statistics=columns.write_statistics,
            column_encoding=columns.column_encoding,
        ) as writer:
            writer.write_batch(batch)
            seen.add(batch)
        statistics = compute_file_statistics(pq.read_metadata(path), batch.schema, seen)
        self._commit(path, statistics)
        return statistics

    def _commit(self, path: Path, statistics: str) -> None:
        named = str(path.relative_to(self.folder))
        action = AddAction(named, path.stat().st_size, {"commit_hour": HOUR}, 0, True, statistics)  # noqa: FBT003
        DeltaTable(self.folder).create_write_transaction(
            [action], mode="append", schema=self._schema, partition_by=["commit_hour"]
        )


def proof_of(rows: int) -> Provenance:
    """Make the provenance of a chunk of one partition, with one row for each message."""
    return Provenance(
        runs=[PartitionRun("sensors.1", "tQx3bEr0Qm6Rz8aXo1XvWw", 3, rows)],
        offsets=list(range(100, 100 + rows)),
        row_numbers=[0] * rows,
        sessions=["s"] * rows,
        sequences=[None] * rows,
        event_times_us=[None] * rows,
    )
