"""A stream's real tables, filled by batches of many small files, as the engine writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.model.column_types import DecimalType
from lockstep.model.table_schema import IDENTITY, make_table_schema
from lockstep.table import ledger
from lockstep.table.commit import BatchCommit, Committed, Writer, commit_batch, commit_claim, commit_closed_hour
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import DataFile, DataFileWriter
from lockstep.table.row_encoder import PartitionRun, Provenance, RowsBuilder

HOUR = "2026-01-01T00"
NEXT_HOUR = "2026-01-01T01"
START = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = DecimalType(20, 4)

Partition = tuple[str, int]
Identity = tuple[str, int, int, int]


class Place(msgspec.Struct):
    room: str
    floor: int | None


class Reading(msgspec.Struct, kw_only=True):
    """A row with a column of every kind."""

    number: int
    value: float | None
    text: str
    at: datetime
    day: date | None
    flag: bool | None
    raw: bytes | None
    price: Annotated[Decimal, PRICE] | None
    place: Place
    tags: list[int]
    counts: dict[str, int]


def reading(partition: Partition, offset: int, row: int) -> Reading:
    """Make the row of a message: distinct for each place, with nulls, empty and repeated values."""
    number = offset * 31 + row * 7 + partition[1]
    return Reading(
        number=number,
        value=None if number % 5 == 0 else number / 3,
        text=f"text {number % 4}" if number % 3 else f"{partition[0]} {number} ü",
        at=START + timedelta(microseconds=number),
        day=None if number % 7 == 0 else date(2026, 1, 1 + number % 28),
        flag=(None, True, False)[number % 3],
        raw=None if number % 4 else number.to_bytes(4, "big"),
        price=None if number % 6 == 0 else Decimal(number) / 4,
        place=Place(f"r{number % 3}", None if number % 2 else number),
        tags=list(range(number % 4)),
        counts={} if number % 2 else {"a": number, "b": -number},
    )


class StreamTable:
    """The tables of one stream, and the writer that holds them."""

    def __init__(self, root: Path) -> None:
        self.folders = StreamFolders("readings", root)
        self.output = open_tables(self.folders, make_table_schema(Reading), "cluster")
        claimed = self.output.commit(commit_claim(0, self.output.table_id, lambda _: None))
        self._writer = Writer(epoch=claimed.head.epoch, generation=claimed.head.generation)
        self._builder = RowsBuilder(Reading)
        self._next: dict[Partition, int] = {}
        self.head = claimed.head

    def batch(self, *files: Mapping[Partition, int], hour: str = HOUR) -> Committed:
        """Commit a batch: one file for each mapping of partitions to numbers of messages."""
        landed = self.try_batch([self.file(messages, hour) for messages in files], hour)
        self.head = landed.head
        return landed

    def try_batch(self, files: Sequence[DataFile], hour: str) -> Committed:
        """Commit written files as the next batch, or raise as the commit does."""
        batch = BatchCommit(
            number=self.output.base().head.batch + 1,
            commit_hour=hour,
            files=tuple(files),
            ledger=ledger.write_ledger(self.folders.ledger, []),
        )
        return self.output.commit(commit_batch(self._writer, batch))

    def file(self, messages: Mapping[Partition, int], hour: str = HOUR) -> DataFile:
        """Write the next messages of some partitions without a commit."""
        places = [place for partition in sorted(messages) for place in self._places(partition, messages[partition])]
        return self.write(places, hour)

    def write(self, places: Sequence[Identity], hour: str = HOUR) -> DataFile:
        """Write rows at these places, in this order."""
        rows = [reading((topic, partition), offset, row) for topic, partition, offset, row in places]
        proof = Provenance(
            runs=[PartitionRun(f"name of {topic}", topic, partition, 1) for topic, partition, _, _ in places],
            offsets=[offset for _, _, offset, _ in places],
            row_numbers=[row for _, _, _, row in places],
            sessions=[f"s{offset % 3}" for _, _, offset, _ in places],
            sequences=[None if offset % 11 == 0 else offset for _, _, offset, _ in places],
            event_times_us=[None if offset % 13 == 0 else offset for _, _, offset, _ in places],
        )
        schema = self._builder.schema
        with DataFileWriter(self.folders.table, schema, commit_hour=hour, prefix="rows") as writer:
            writer.write(self._builder.build(rows, proof))
            return writer.finish()

    def close(self, hour: str = HOUR) -> None:
        """Close an hour."""
        self.output.commit(commit_closed_hour(hour))

    def _places(self, partition: Partition, messages: int) -> list[Identity]:
        """Every third message has two rows, every fifth none."""
        first = self._next.get(partition, 100)
        self._next[partition] = first + messages
        rows = {offset: 0 if offset % 5 == 0 else 1 + (offset % 3 == 0) for offset in range(first, first + messages)}
        return [(*partition, offset, row) for offset, count in rows.items() for row in range(count)]


def live_files(folders: StreamFolders) -> list[str]:
    """Return the paths of the live files, relative to the table."""
    actions = pa.table(DeltaTable(folders.table).get_add_actions())
    return sorted(map(str, actions.column("path").to_pylist()))


def read_file(folders: StreamFolders, path: str) -> pa.Table:
    """Read all rows of one file, in the file's order."""
    return pq.ParquetFile(folders.table / path).read()


def identities(rows: pa.Table) -> list[Identity]:
    """Return the identity of each row, in the order of the rows."""
    return list(zip(*(rows.column(name).to_pylist() for name in IDENTITY), strict=True))


def stored_rows(folders: StreamFolders) -> list[dict[str, Any]]:
    """Read all rows of the table without code of the product, ordered by identity."""
    table = DeltaTable(folders.table).to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: [row[name] for name in IDENTITY])


def files_on_disk(folders: StreamFolders) -> list[str]:
    """List all data files in the table's folder, committed or not."""
    return sorted(str(path.relative_to(folders.table)) for path in folders.table.glob("commit_hour=*/*.parquet"))
