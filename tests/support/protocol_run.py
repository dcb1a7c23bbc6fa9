"""A run as the commit protocol sees it: it claims, commits batches of one partition, and updates the ledger."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from deltalake import DeltaTable

from lockstep.features.history.rewind_commit import RewindCommit, commit_rewind
from lockstep.model.position import Position, TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.table import delta_log, ledger, side_tables
from lockstep.table.commit import BatchCommit, Writer, commit_batch, commit_claim
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile, DataFileWriter
from lockstep.table.positions import LedgerStamp, make_unchanged_row
from lockstep.table.restore import commit_restored
from lockstep.table.row_encoder import PartitionRun as RunOfRows
from lockstep.table.row_encoder import Provenance, RowsBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.model.finding import Finding
    from lockstep.table.commit import Committed, OutputLog
    from lockstep.table.head import Head, SideFile

HOUR = "2026-01-01T00"
TOPIC = "t"
TOPIC_ID = "id"


class Row(msgspec.Struct):
    number: int


BUILDER = RowsBuilder(Row)


def folders_in(root: Path, stream: str = "readings") -> StreamFolders:
    return StreamFolders(stream, root)


def anything(head: Head) -> None:
    """Accept any head."""
    del head


class ProtocolRun:
    """One run, with separate handles like a separate process.

    Attributes:
        clock: The current time of its clock.
    """

    def __init__(self, folders: StreamFolders, output: OutputLog | None = None) -> None:
        self.folders, self.clock = folders, datetime(2026, 1, 1, tzinfo=UTC)
        self.output = output or open_tables(folders, make_table_schema(Row), "cluster")
        self.head = self.output.base().head

    def copied(self, root: Path) -> ProtocolRun:
        """Continue in a copy of all folders: a test may change the copy and reuse the original."""
        shutil.copytree(self.folders.root, root)
        made = ProtocolRun(folders_in(root, self.folders.stream))
        made.clock = self.clock
        return made

    @property
    def writer(self) -> Writer:
        """The writer identity of this run since its claim."""
        return Writer(epoch=self.head.epoch, generation=self.head.generation)

    def claim(self) -> Head:
        """Claim the next epoch, and update the ledger."""
        self.head = self.output.commit(commit_claim(self.head.epoch, self.output.table_id, anything)).head
        self.forward(self.head)
        return self.head

    def prepared(
        self, *, rows: int = 2, hour: str | None = None, findings: tuple[Finding, ...] = (), full: bool = False
    ) -> BatchCommit:
        """Prepare the next batch: write its files without a commit."""
        hour = hour or max(f"{self.clock:%Y-%m-%dT%H}", self.head.hour)
        start = self.next_offset()
        return BatchCommit(
            number=self.head.batch + 1,
            commit_hour=hour,
            files=(self.file(start, rows, hour),) if rows else (),
            ledger=self.ledger_file(start, rows),
            findings=findings,
            full_ledger_at=self.clock.timestamp() if full else None,
        )

    def commit(self, batch: BatchCommit) -> Committed:
        """Commit a batch to the output table alone."""
        landed = self.output.commit(commit_batch(self.writer, batch))
        self.head = landed.head
        return landed

    def batch(self, rows: int = 2, *, full: bool = False) -> Committed:
        """Prepare and commit a batch, and update the ledger."""
        landed = self.commit(self.prepared(rows=rows, full=full))
        self.forward(landed.head)
        return landed

    def forward(self, head: Head) -> bool:
        return side_tables.SideLogs(self.folders).catch_up(head)

    def next_offset(self) -> int:
        row = ledger.read_positions(self.folders, self.head).get(TopicIdPartition(TOPIC_ID, 0))
        return row.until if row is not None else 0

    def file(self, start: int, rows: int, hour: str) -> DataFile:
        offsets = list(range(start, start + rows))
        proof = Provenance(
            [RunOfRows(TOPIC, TOPIC_ID, 0, rows)], offsets, [0] * rows, ["s"] * rows, offsets, [None] * rows
        )
        with DataFileWriter(self.folders.table, BUILDER.schema, commit_hour=hour, prefix="rows") as writer:
            writer.write(BUILDER.build([Row(offset) for offset in offsets], proof))
            return writer.finish()

    def prepared_rewind(self, batch: int, hour: str | None = None) -> RewindCommit:
        """Prepare a rewind from the run's head: write its ledger file without a commit."""
        target = delta_log.find_head_of_batch(self.folders.table, batch)
        assert target is not None
        held = ledger.read_positions_at(self.folders, batch)
        after = msgspec.structs.replace(self.head, generation=self.head.generation + 1, epoch=self.head.epoch + 1)
        return RewindCommit(
            table=self.folders.table,
            seen=self.head,
            target=target,
            commit_hour=hour or max(f"{self.clock:%Y-%m-%dT%H}", self.head.hour),
            ledger=self.ledger_file(held[TopicIdPartition(TOPIC_ID, 0)].until if held else 0, 0, after),
            at=self.clock.timestamp(),
            cause="wrong rows (a test)",
        )

    def rewind(self, batch: int, hour: str | None = None) -> Committed:
        """Rewind to a batch, and update the ledger."""
        prepared = self.prepared_rewind(batch, hour)
        landed = commit_restored(self.output, commit_rewind(prepared), prepared.commit_hour)
        self.head = landed.head
        self.forward(landed.head)
        return landed

    def ledger_file(self, start: int, rows: int, head: Head | None = None) -> SideFile:
        head = head or self.head
        stamp = LedgerStamp(
            generation=head.generation,
            batch=head.batch + 1,
            epoch=head.epoch,
            committed_at=self.clock,
            batch_seconds=0.0,
            restart_cause=None,
        )
        position = Position(topic=TOPIC, topic_id=TOPIC_ID, partition=0, next_offset=start)
        quiet = make_unchanged_row(stamp, position, None)
        row = msgspec.structs.replace(quiet, until=start + rows, messages=rows, rows=rows)
        return ledger.write_ledger(self.folders.ledger, [row])


def stored_offsets(folders: StreamFolders) -> list[int]:
    """Return the offsets of all visible rows, sorted."""
    offsets: list[int] = DeltaTable(folders.table).to_pyarrow_table().column("_offset").to_pylist()  # type: ignore[assignment]  # never null
    return sorted(offsets)


def entries(folders: StreamFolders) -> list[delta_log.LogEntry]:
    """Return every entry of the output table's log, by number."""
    newest = DeltaTable(folders.table).version()
    found = [delta_log.read_entry(folders.table, version) for version in range(newest + 1)]
    return [entry for entry in found if entry is not None]
