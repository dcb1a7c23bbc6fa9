"""A small stream in the engine's format: real tables, files, ledger and commits.

`clean_batches` returns the batches as plain lists, which a test may damage before `write` commits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from lockstep import Envelope, Record, Transform
from lockstep.model.finding import Hole
from lockstep.model.table_schema import make_file_schema, make_table_schema
from lockstep.table import ledger, side_tables
from lockstep.table.commit import BatchCommit, OutputLog, Writer, commit_batch, commit_claim
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.parquet import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOUR = "2026-01-01T00"
STREAM = "sensors"
RANGE = 30
"""Number of offsets of each partition in each batch."""


class Reading(msgspec.Struct):
    value: int


class State(msgspec.Struct):
    pass


class Whole(Transform[Reading, State, Reading]):
    """Emits its messages."""

    def envelope(self, message: Reading, record: Record) -> Envelope:
        return Envelope("s")

    def on_snapshot(self, message: Reading, record: Record, previous: State | None) -> State:
        return State()

    def on_update(self, state: State, message: Reading, record: Record) -> Iterable[Reading]:
        yield message


class Place(NamedTuple):
    """A topic-partition."""

    topic: str
    topic_id: str
    partition: int


CLEAN = (Place("sensors.a", "id-a", 0), Place("sensors.a", "id-a", 1), Place("sensors.b", "id-b", 0))

Row = dict[str, Any]
"""An output row by column."""


@dataclass
class Part:
    """The part of a batch in one partition: the rows of each file, and ledger rows."""

    files: list[list[Row]]
    ledger: list[ledger.LedgerRow]

    def row(self, offset: int, number: int = 0) -> Row:
        """Return a row of the first file."""
        return next(row for row in self.files[0] if (row["_emit_offset"], row["_row"]) == (offset, number))

    def change_ledger(self, **changes: Any) -> None:
        """Change the ledger row."""
        self.ledger[0] = msgspec.structs.replace(self.ledger[0], **changes)


Batch = dict[Place, Part]


@dataclass
class _Numbers:
    """The producer's numbers by session."""

    used: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def next(self, topic_id: str, partition: int, session: str) -> int:
        self.used[topic_id, partition, session] += 1
        return self.used[topic_id, partition, session]


def clean_batches(count: int, places: Iterable[Place] = CLEAN) -> list[Batch]:
    """Return batches whose ranges hold messages with one row, two rows or none, skipped messages, and holes.

    Ten offsets at a time belong to one session. It restarts with number 1 in the last batch.
    """
    numbers = _Numbers()
    batches = []
    for number in range(1, count + 1):
        if number == count:
            numbers.used.clear()
        start = 100 + (number - 1) * RANGE
        batches.append({place: _part(place, number, start, numbers) for place in places})
    return batches


def _part(place: Place, batch: int, start: int, numbers: _Numbers) -> Part:
    rows = _rows(*place, start, numbers)
    return Part([rows], [_ledger_row(place, batch, start, len(rows))])


def _rows(topic: str, topic_id: str, partition: int, start: int, numbers: _Numbers) -> list[Row]:
    rows = []
    for offset in range(start, start + RANGE):
        session = f"s{offset // 10 % 3}"
        if offset % 10 in (0, 8, 9):
            continue
        sequence = numbers.next(topic_id, partition, session)
        rows += [
            {
                "value": offset,
                "_topic": topic,
                "_topic_id": topic_id,
                "_partition": partition,
                "_offset": offset,
                "_emit_offset": offset,
                "_row": row,
                "_session": session,
                "_sequence": sequence,
                "_event_time": offset * 1_000_000,
                "_cause": "update",
            }
            for row in range(1 + offset % 2)
        ]
    return rows


def _ledger_row(place: Place, batch: int, start: int, rows: int) -> ledger.LedgerRow:
    tens = RANGE // 10
    return msgspec.structs.replace(
        quiet(place, batch),
        start=start,
        until=start + RANGE,
        messages=RANGE - tens,
        rows=rows,
        accepted_without_row=tens,
        skipped=tens,
        holes=[Hole(offset, offset + 1, "marker") for offset in range(start + 8, start + RANGE, 10)],
    )


def quiet(place: Place, batch: int) -> ledger.LedgerRow:
    """Return the ledger row of a partition that stays at offset 7."""
    return ledger.LedgerRow(
        generation=1,
        batch=batch,
        epoch=1,
        committed_at=ledger.read_clock(),
        topic_id=place.topic_id,
        topic=place.topic,
        partition=place.partition,
        start=7,
        until=7,
        stable_end=1000,
        high_watermark=1000,
        messages=0,
        rows=0,
        accepted_without_row=0,
        skipped=0,
        repeats=0,
        gaps=0,
        dropped=0,
        quarantined=0,
        suspended_from=0,
        holes=[],
        leader_epoch=None,
        first_event_time=None,
        last_event_time=None,
        newest_timestamp=None,
        batch_seconds=0.1,
        cpu_seconds=0.1,
        state_file=None,
        state_start=None,
        state_length=None,
        state_bytes=0,
    )


def write(
    root: Path, batches: list[Batch], *, forwarded: int | None = None, hours: Sequence[str] = ()
) -> StreamFolders:
    """Commit the batches in order, and the ledgers of the first `forwarded` batches also to their table."""
    folders = StreamFolders(STREAM, root)
    output = open_tables(folders, make_table_schema(Reading), "cluster")
    output.commit(commit_claim(0, output.table_id, lambda _: None))
    _commit(output, folders, batches, 0, len(batches) if forwarded is None else forwarded, hours)
    return folders


def write_more(folders: StreamFolders, batches: list[Batch], first: int) -> None:
    """Commit the batches from index `first` on, after the earlier batches."""
    _commit(OutputLog(folders.table), folders, batches, first, len(batches))


def _commit(  # the parts of a table
    output: OutputLog,
    folders: StreamFolders,
    batches: list[Batch],
    first: int,
    forwarded: int,
    hours: Sequence[str] = (),
) -> None:
    for number, batch in enumerate(batches[first:], first + 1):
        hour = hours[number - 1] if hours else HOUR
        held = ledger.write_ledger(folders.ledger, [row for part in batch.values() for row in part.ledger])
        files = [arrow(rows) for part in batch.values() for rows in part.files if rows]
        named = tuple(write_file(folders.table, file, prefix="rows", commit_hour=hour) for file in files)
        planned = BatchCommit(number=number, commit_hour=hour, files=named, ledger=held)
        output.commit(commit_batch(Writer(epoch=1, generation=1), planned))
        if number <= forwarded:
            side_tables.SideLog(folders.ledger).catch_up((held,), number, after=number - 1)


def arrow(rows: list[Row]) -> pa.Table:
    """Return rows in the format of a file; unexpected nulls make the columns nullable."""
    schema = make_file_schema(Reading)
    if any(row[name] is None for row in rows for name in row):
        schema = pa.schema([column.with_nullable(nullable=True) for column in schema])
    return pa.Table.from_pylist(rows, schema=schema)
