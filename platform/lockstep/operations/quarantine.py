"""Reads the quarantine: counts by cause, one whole message, or an export to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lockstep.errors import LockstepError
from lockstep.model.decoding import decode_value
from lockstep.operations.stream_table import open_table
from lockstep.table.layout import StreamFolders
from lockstep.table.quarantine import SCHEMA, QuarantineRow

if TYPE_CHECKING:
    import pyarrow.dataset as ds

GROUPED = ("topic", "partition", "cause", "session")
BATCH_ROWS = 1_000
"""Rows of an export in memory at once: each may have a megabyte."""
PLACE = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d+)@(?P<offset>\d+)")


class QuarantineFilter(msgspec.Struct, frozen=True):
    """Selection of messages; None for all.

    Attributes:
        cause: Only of this cause.
        topic: Only of this topic.
        session: Only of this session.
        since: Only of this batch and later.
    """

    cause: str | None = None
    topic: str | None = None
    session: str | None = None
    since: int | None = None


class QuarantineGroup(msgspec.Struct, frozen=True):
    """Messages of one session (None where unknown) in a partition, with one cause.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        cause: Cause of the quarantine.
        session: The session.
        messages: Number of messages.
        first_offset: The smallest offset.
        last_offset: The largest offset.
        last_batch: The newest batch that added one.
    """

    topic: str
    partition: int
    cause: str
    session: str | None
    messages: int
    first_offset: int
    last_offset: int
    last_batch: int


class QuarantineList(msgspec.Struct, frozen=True):
    """Contents of a stream's quarantine.

    Attributes:
        stream: Name of the stream.
        messages: Number of selected messages, including groups left out by the limit.
        groups: The largest groups first.
        more: Number of groups left out by the limit.
        messages_total: Number of all messages in quarantine, selected or not.
        causes: The causes of all of them.
        dropped: Messages that retention has dropped, why and by whom; empty for none.
    """

    stream: str
    messages: int
    groups: tuple[QuarantineGroup, ...]
    more: int
    messages_total: int = 0
    causes: tuple[str, ...] = ()
    dropped: str = ""


class Place(msgspec.Struct, frozen=True):
    """Topic, partition and offset of a message."""

    topic: str
    partition: int
    offset: int

    @staticmethod
    def parse(text: str) -> Place:
        """Parse TOPIC/PARTITION@OFFSET. Raises ValueError with the right form."""
        match = PLACE.fullmatch(text)
        if match is None:
            raise ValueError("TOPIC/PARTITION@OFFSET, for example books.eth/0@120")
        return Place(match["topic"], int(match["partition"]), int(match["offset"]))


class Exported(msgspec.Struct, frozen=True):
    """An export of quarantined messages.

    Attributes:
        stream: Name of the stream.
        file: The file.
        messages: Number of messages in it.
    """

    stream: str
    file: Path
    messages: int


class NotInQuarantine(LockstepError):
    """No message at that offset is in quarantine.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Offset.
    """

    def __init__(self, stream: str, place: Place, *, dropped: str = "") -> None:
        """Name the possible reason.

        Args:
            stream: Name of the stream.
            place: Topic, partition and offset.
            dropped: Messages that retention has dropped; empty for none.
        """
        problem = f"{place.topic}/{place.partition}@{place.offset} is not in quarantine"
        if dropped:
            problem = f"{problem}; retention has dropped the {dropped}"
        super().__init__(
            problem,
            next_step=f"lockstep quarantine list {stream} --topic {place.topic}",
        )
        self.topic = place.topic
        self.partition = place.partition
        self.offset = place.offset


class ExportRefused(LockstepError):
    """A file cannot be written, or exists already.

    Attributes:
        file: The file.
    """

    def __init__(self, file: Path, reason: str, next_step: str = "choose another file; nothing is overwritten") -> None:
        super().__init__(f"{file} is not written: {reason}", next_step=next_step)
        self.file = file


def list_quarantine(folders: StreamFolders, wanted: QuarantineFilter, *, limit: int | None = None) -> QuarantineList:
    """Group the messages in quarantine. Values are not read.

    Raises:
        NoTable: The stream has never run.
    """
    columns = [*GROUPED, "offset", "batch"]
    table = _table(folders)
    selected = table.to_table(columns=columns, filter=_filter(folders, wanted))
    every = selected
    if wanted != QuarantineFilter():  # for the total and the causes, which the filter does not restrict
        every = table.to_table(["cause"], filter=_make_lineage_filter(folders))
    sums = [("offset", "count"), ("offset", "min"), ("offset", "max"), ("batch", "max")]
    grouped = selected.group_by(list(GROUPED)).aggregate(sums).to_pylist()  # type: ignore[arg-type]  # of its literals
    groups = list(map(_make_group, grouped))
    groups.sort(key=lambda group: (-group.messages, group.topic, group.partition, group.first_offset, group.cause))
    shown = groups if limit is None else groups[:limit]
    return QuarantineList(
        stream=folders.stream,
        messages=selected.num_rows,
        groups=tuple(shown),
        more=len(groups) - len(shown),
        messages_total=every.num_rows,
        causes=tuple(sorted(map(str, pc.unique(every["cause"]).to_pylist()))),
        dropped=describe_dropped(folders),
    )


def read_quarantined(folders: StreamFolders, place: Place) -> tuple[QuarantineRow, ...]:
    """The message at an offset: one for each topic id and each generation.

    Raises:
        NoTable: The stream has never run.
        NotInQuarantine: There is none.
    """
    table = _table(folders)
    here = [pc.field(name) == value for name, value in msgspec.structs.asdict(place).items()]
    rows = table.to_table(filter=reduce(and_, here, _make_lineage_filter(folders))).sort_by("batch").to_pylist()
    if not rows:
        raise NotInQuarantine(folders.stream, place, dropped=describe_dropped(folders))
    return tuple(decode_value(rows, list[QuarantineRow]))


def describe_dropped(folders: StreamFolders) -> str:
    """Messages that retention has dropped from quarantine and late table; empty for none."""
    retention = open_table(folders).base().head.quarantine_retention
    if retention is None:
        return ""
    return retention.describe()


def _make_group(row: Mapping[str, Any]) -> QuarantineGroup:
    return QuarantineGroup(
        topic=row["topic"],
        partition=row["partition"],
        cause=row["cause"],
        session=row["session"],
        messages=row["offset_count"],
        first_offset=row["offset_min"],
        last_offset=row["offset_max"],
        last_batch=row["batch_max"],
    )


def export_quarantined(folders: StreamFolders, wanted: QuarantineFilter, file: Path) -> Exported:
    """Write messages with all their bytes: JSON lines (bytes as base64) or Parquet, by the file's ending.

    Raises:
        NoTable: The stream has never run.
        ExportRefused: The file exists, or cannot be written.
    """
    last_erasure = open_table(folders).base().head.erasure
    table = _table(folders)
    write = _write_parquet if file.suffix == ".parquet" else _write_lines
    # File by file: a scan of the whole table reads files ahead of a slow writer.
    batches = _read_in_turn(table, _filter(folders, wanted))
    try:
        # Exclusive: an export replaces no file.
        with file.open("xb") as out:
            try:
                messages = write(out, batches)
            # After Ctrl-C, too: a part of an export would be taken for all of it.
            except BaseException:
                file.unlink()
                raise
    except FileExistsError:
        raise ExportRefused(file, "it is there already") from None
    except OSError as error:
        raise ExportRefused(file, error.strerror or str(error)) from error
    # Checked after the last read: the file may hold messages that an erasure removed in the meantime.
    now = open_table(folders).base().head.erasure
    if now is not None and (last_erasure is None or last_erasure.batch != now.batch):
        file.unlink()
        raise ExportRefused(file, "a session was erased meanwhile", "export again")
    return Exported(folders.stream, file, messages)


def _read_in_turn(table: ds.Dataset, wanted: pc.Expression) -> Iterator[pa.RecordBatch]:
    """Rows, file by file: a scan of the whole table reads files ahead of a slow writer."""
    for file in table.get_fragments(filter=wanted):
        yield from file.to_batches(schema=table.schema, filter=wanted, batch_size=BATCH_ROWS, batch_readahead=1)


def _write_lines(out: BinaryIO, batches: Iterator[pa.RecordBatch]) -> int:
    messages = 0
    for batch in batches:
        out.writelines(msgspec.json.encode(row) + b"\n" for row in batch.to_pylist())
        messages += batch.num_rows
    return messages


def _write_parquet(out: BinaryIO, batches: Iterator[pa.RecordBatch]) -> int:
    messages = 0
    with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch.cast(SCHEMA))
            messages += batch.num_rows
    return messages


def _table(folders: StreamFolders) -> ds.Dataset:
    from lockstep.table.dataset import open_dataset  # loads pandas, which code locations do without

    open_table(folders)
    return open_dataset(folders.quarantine)


def _make_lineage_filter(folders: StreamFolders) -> pc.Expression:
    """Messages of batches that count: those of undone ones are read again."""
    valid = open_table(folders).base().head.valid_batches
    parts = [(pc.field("generation") == each) & (pc.field("batch") <= last) for each, last in valid.items()]
    return reduce(or_, parts)


def _filter(folders: StreamFolders, wanted: QuarantineFilter) -> pc.Expression:
    equal = {"cause": wanted.cause, "topic": wanted.topic, "session": wanted.session}
    parts = [pc.field(name) == value for name, value in equal.items() if value is not None]
    if wanted.since is not None:
        parts.append(pc.field("batch") >= wanted.since)
    return reduce(and_, parts, _make_lineage_filter(folders))
