"""Cost of a stream after a month: days of batches by the real committer, with a moved clock and hourly upkeep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console

from benchmarks.record import Conditions, Figure, Panel, Record, Series
from lockstep import Envelope, Kind, Sequence, Stream, Strict, Topics, Transform
from lockstep.engine.driver.committer import Committer
from lockstep.engine.driver.planner import choose_commit_hour
from lockstep.engine.driver.startup import WriterStartup
from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.run import compact_stream
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.model.position import Position
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import BatchCommit, OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions
from lockstep.table.parquet import DataFile, write_file
from lockstep.table.positions import LedgerStamp, make_unchanged_row
from lockstep.table.row_encoder import PartitionRun as RunOfRows
from lockstep.table.row_encoder import Provenance, RowsBuilder
from lockstep.table.written_by import WrittenBy

HOUR, DAY = 3600.0, 86400.0
BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
METADATA_A_DAY_MAX_MB, GROWTH_MAX = 20.0, 1.2
LOOKS = (
    *("a start", "status", "a tick of the supervisor", "a tick of the health sensor"),
    "open the table with Spark",
)
"""What operators, sensors and readers do, each in a process of its own."""
UPKEEP = "compaction and housekeeping of an hour"
RETENTION_SECONDS = 72 * HOUR


class Reading(msgspec.Struct):
    """A row as emitted by a sensor's stream."""

    sensor: str
    value: float
    unit: str
    quality: int


class _Readings(Transform[Reading, Reading, Reading]):
    """Never folds anything here: rows are passed to the committer as a task would pass them."""

    def envelope(self, message: Reading, record: object) -> Envelope:
        return Envelope(message.sensor, Kind.UPDATE, None, None, None)

    def on_snapshot(self, message: Reading, record: object, previous: Reading | None) -> Reading:
        return message

    def on_update(self, state: Reading, message: Reading, record: object) -> Iterator[Reading]:
        yield message


STREAM = Stream(
    name="growth", topics=Topics(pattern="growth"), transform=_Readings(), integrity=Strict(evidence=Sequence())
)
BUILDER = RowsBuilder(Reading)


@dataclass(frozen=True)
class Growth:
    """Settings of the measurement.

    Attributes:
        days: Simulated days.
        seconds: Simulated seconds from batch to batch.
        partitions: Partitions that every batch reads.
    """

    days: int = 30
    seconds: float = 5.0
    partitions: int = 2


class Look(msgspec.Struct, frozen=True):
    """What a look costs.

    Attributes:
        cpu_seconds: The least of some looks, as other load of the machine only adds; of a JVM, if it looks.
        memory_bytes: That no file backs, after the looks; of a JVM, if it looks.
    """

    cpu_seconds: float
    memory_bytes: int


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """Disk usage at the end of a day, and the cost of reading it.

    Attributes:
        day: Its number, from 1.
        bytes: Bytes on disk by kind: rows, ledger, log of the table, log of the ledger, checkpoints.
        files: Files likewise.
        cpu_seconds: CPU time by operation: a read of positions, opening the table, a start, a batch.
        memory_bytes: Of the process that does it, by operation.
    """

    day: int
    bytes: dict[str, int]
    files: dict[str, int]
    cpu_seconds: dict[str, float]
    memory_bytes: dict[str, int]

    @property
    def metadata_bytes(self) -> int:
        """All except rows; this stream has no state."""
        return sum(size for kind, size in self.bytes.items() if kind != "rows")


@dataclass
class _Clock:
    """A clock that moves only on request; all code that reads the time gets this one."""

    now: float = BEGAN
    _real: Callable[[], float] = field(default=time.time)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        time.time = lambda: self.now
        try:
            yield
        finally:
            time.time = self._real

    def stamp(self, folder: Path) -> None:
        """Set the age of newly written files to their simulated age."""
        for name, status in find_storage(folder).walk_files(folder):
            if status.modified_at > self.now + HOUR:
                os.utime(folder / name, (self.now, self.now))


def measure_growth(growth: Growth, *, folder: Path, console: Console) -> Generator[Record]:
    """Commit the batches of some days, hour by hour, with compaction and housekeeping as scheduled.

    Gives the record of all days so far after each of them: a measurement of hours that is stopped loses no day, and a
    folder that is given again is continued after its last whole hour.

    The clock is moved backwards first, so newly written files seem to come from the future until they are stamped at
    the end of their hour: only clean-up reads the age of files, and it runs after that.
    """
    conditions, kept = Conditions.now(), _Kept.load(folder, growth)
    clock, days = _Clock(BEGAN + kept.hours * HOUR), kept.days
    soak = _Soak(growth, StreamFolders(STREAM.name, folder), clock)
    if kept.hours >= growth.days * 24:
        yield _record(growth, conditions, days)
    with clock.in_force(), console.status("") as status:
        for hour in range(kept.hours, growth.days * 24):
            soak.hour()
            status.update(f"day {hour // 24 + 1}, hour {hour % 24 + 1}")
            if (hour + 1) % 24:
                _Kept(growth, hour + 1, days).save(folder)
                continue
            days.append(soak.measured(hour // 24 + 1))
            _Kept(growth, hour + 1, days).save(folder)
            console.print(
                f"day {len(days)}: {days[-1].metadata_bytes / 1e6:.1f} MB of metadata, "
                f"{sum(days[-1].files.values())} files"
            )
            yield _record(growth, conditions, days)


class OtherSettingsError(Exception):
    """A kept folder's batches were made with other settings."""


class _Kept(msgspec.Struct):
    """What a later run continues with.

    Attributes:
        growth: The settings of the folder's batches.
        hours: Whole simulated hours.
        days: Measurements so far.
    """

    growth: Growth
    hours: int
    days: list[Day]

    @staticmethod
    def load(folder: Path, growth: Growth) -> _Kept:
        """What the folder holds; the settings of its batches must be the same, except for the number of days.

        Raises:
            OtherSettingsError: It was made with other settings.
        """
        path = folder / "soak.json"
        if not path.exists():
            return _Kept(growth, 0, [])
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if replace(kept.growth, days=growth.days) != growth:
            raise OtherSettingsError(f"{folder} was made with {kept.growth}, not {growth}: name another folder")
        return kept

    def save(self, folder: Path) -> None:
        """Replace the file in one step."""
        pending = folder / "soak.json.new"
        pending.write_bytes(msgspec.json.encode(self))
        pending.replace(folder / "soak.json")


class _Soak:
    def __init__(self, growth: Growth, folders: StreamFolders, clock: _Clock) -> None:
        self._growth, self._folders, self._clock = growth, folders, clock
        self._offset = _next_offset(folders)
        self._batch_cpu = 0.0
        self._upkeep_cpu = list[float]()

    def hour(self) -> None:
        """A run of an hour, then the scheduled jobs."""
        began, batches = time.process_time(), int(HOUR / self._growth.seconds)
        claimed = WriterStartup(STREAM, self._folders, "cluster").claim(cancelled=lambda: False)
        with ThreadPoolExecutor(1) as side_table_executor:
            committer = Committer(self._folders, claimed, side_table_executor, side_table_executor)
            for _ in range(batches):
                self._batch(committer)
                self._clock.now += self._growth.seconds
            committer.wait_for_side_tables()
        self._batch_cpu = (time.process_time() - began) / batches
        self._clock.stamp(self._folders.root)
        began = time.process_time()
        compact_ledger(self._folders, OutputLog(self._folders.table).base().head)
        compact_stream(self._folders)
        run_housekeeping(self._folders, retention_seconds=RETENTION_SECONDS)
        self._upkeep_cpu.append(time.process_time() - began)
        self._clock.stamp(self._folders.root)

    def _batch(self, committer: Committer) -> None:
        head = committer.head
        hour = choose_commit_hour(
            datetime.fromtimestamp(self._clock.now, UTC).strftime("%Y-%m-%dT%H"), head.hour, head.closed_hour
        )
        file = self._file(hour, WrittenBy(head.generation, head.epoch, head.batch + 1))

        def rows_of(stamp: LedgerStamp, full: bool) -> list[LedgerRow]:  # noqa: FBT001  # the committer's own
            del full
            return [self._ledger_row(stamp, partition) for partition in range(self._growth.partitions)]

        committer.commit(BatchCommit(number=head.batch + 1, commit_hour=hour, files=(file,)), rows_of)
        self._offset += 1

    def _ledger_row(self, stamp: LedgerStamp, partition: int) -> LedgerRow:
        position = Position(
            topic=f"growth.{partition}", topic_id=f"id-of-{partition}", partition=0, next_offset=self._offset
        )
        now = datetime.fromtimestamp(self._clock.now, UTC)
        counts = {"until": self._offset + 1, "messages": 1, "rows": 1, "with_rows": 1, "cpu_seconds": self._offset / 7}
        return msgspec.structs.replace(
            make_unchanged_row(stamp, position, None),
            **counts,
            last_event_time=now,
            newest_timestamp=now,
            watermark=now,
        )

    def _file(self, hour: str, written_by: WrittenBy) -> DataFile:
        count = self._growth.partitions
        runs = [RunOfRows(f"growth.{number}", f"id-of-{number}", 0, 1) for number in range(count)]
        at = [self._offset] * count
        times = [int(self._clock.now * 1e6)] * count
        proof = Provenance(runs, at, [0] * count, ["session"] * count, at, times)
        rows = [Reading(f"sensor {number}", self._offset / 3, "C", 1) for number in range(count)]
        table = pa.Table.from_batches([BUILDER.build(rows, proof)])
        return write_file(self._folders.table, table, prefix=f"rows-{written_by.label}", commit_hour=hour)

    def measured(self, day: int) -> Day:
        """Measure the disk, and the operations of operators and sensors.

        The tables are opened right after a log checkpoint. An open reads all entries since the last one, whose age at
        the end of a day is a matter of chance: days would be compared by that.
        """
        folders = self._folders
        found: dict[str, list[int]] = {}
        for path in (folders.root / folders.stream).rglob("*"):
            if path.is_file():
                found.setdefault(_kind(path, folders), []).append(path.stat().st_size)
        for table in (folders.table, folders.ledger):
            write_checkpoint(table)
        self._clock.stamp(folders.root)
        looks = {name: self._look(name) for name in LOOKS}
        upkeep, self._upkeep_cpu = median(self._upkeep_cpu), []
        return Day(
            day=day,
            bytes={kind: sum(sizes) for kind, sizes in sorted(found.items())},
            files={kind: len(sizes) for kind, sizes in sorted(found.items())},
            cpu_seconds={
                "positions": _cpu(lambda: read_positions(folders, OutputLog(folders.table).base().head)),
                "open the table": _cpu(lambda: DeltaTable(folders.table).get_add_actions()),
                "open the ledger": _cpu(lambda: DeltaTable(folders.ledger).get_add_actions()),
                "a batch": self._batch_cpu,
                UPKEEP: upkeep,
                **{name: look.cpu_seconds for name, look in looks.items()},
            },
            memory_bytes={name: look.memory_bytes for name, look in looks.items()},
        )

    def _look(self, name: str) -> Look:
        """One of another process under this clock."""
        side = [sys.executable, "-m", "benchmarks.growth_side", name, str(self._folders.root), str(self._clock.now)]
        answer = subprocess.run(side, check=True, stdout=subprocess.PIPE)
        return msgspec.json.decode(answer.stdout.splitlines()[-1], type=Look)


def _next_offset(folders: StreamFolders) -> int:
    """One message of each partition is read by a batch; an hour that was cut short counts as far as it came."""
    return OutputLog(folders.table).base().head.batch if delta_log.has_log(folders.table) else 0


def _kind(path: Path, folders: StreamFolders) -> str:
    if path.parent.name == "_delta_log":
        log = "log of the table" if path.is_relative_to(folders.table) else "logs of side tables"
        return "log checkpoints" if "checkpoint" in path.name else log
    if path.is_relative_to(folders.table):
        return "rows"
    if path.is_relative_to(folders.ledger):
        return "ledger, compacted" if path.name.startswith("compacted-") else "ledger, one file a batch"
    return "other"


def _cpu(act: Callable[[], object], repeat: int = 5) -> float:
    """The minimum of several times: other load of the machine only adds."""
    found = []
    for _ in range(repeat):
        began = time.process_time()
        act()
        found.append(time.process_time() - began)
    return min(found)


def _make_figures(days: list[Day]) -> list[Figure]:
    """Late days are compared with early ones by the median of three: one look is as noisy as the machine."""
    last, filled = days[-1], days[:3][-1]
    early, late = days[1:4] or days, days[-3:]
    history, added = last.bytes.get("ledger, compacted", 0), last.metadata_bytes - filled.metadata_bytes
    a_day = added / max(1, last.day - filled.day)
    measured = {what: [day.cpu_seconds[what] for day in days] for what in last.cpu_seconds}
    measured |= {f"memory of {what}": [float(day.memory_bytes[what]) for day in days] for what in last.memory_bytes}
    compared = f"days {late[0].day} to {last.day} to days {early[0].day} to {early[-1].day}"
    return [
        Figure("metadata on disk at the end, all but rows and state", last.metadata_bytes / 1e6, "MB"),
        Figure(f"metadata a day, day {filled.day} to day {last.day}", a_day / 1e6, "MB", METADATA_A_DAY_MAX_MB),
        Figure("of these the ledger's compacted hours, which are kept permanently", history / 1e6, "MB"),
        *(
            Figure(f"{name}, {compared}", median(each[-3:]) / median(each[1:4] or each), "", GROWTH_MAX)
            for name, each in measured.items()
        ),
        *(Figure(f"{what}, day {last.day}", seconds, "CPU s") for what, seconds in last.cpu_seconds.items()),
        *(Figure(f"memory of {what}, day {last.day}", size / 1e6, "MB") for what, size in last.memory_bytes.items()),
    ]


def _record(growth: Growth, conditions: Conditions, days: list[Day]) -> Record:
    last = days[-1]
    numbers = [float(day.day) for day in days]
    kinds = sorted({kind for day in days for kind in day.bytes if kind != "rows"})
    title = f"a batch every {growth.seconds:g} s, {growth.partitions} partitions"
    panels = [
        Panel(
            kind="curve",
            title=f"metadata, {title}",
            x_label="day",
            y_label="MB",
            series=[Series("all", [day.metadata_bytes / 1e6 for day in days], numbers)]
            + [Series(kind, [day.bytes.get(kind, 0) / 1e6 for day in days], numbers) for kind in kinds],
        ),
        Panel(
            kind="curve",
            title="what a look costs",
            x_label="day",
            y_label="CPU s",
            series=[Series(what, [day.cpu_seconds[what] for day in days], numbers) for what in last.cpu_seconds],
        ),
        Panel(
            kind="curve",
            title="memory of a look",
            x_label="day",
            y_label="MB",
            series=[
                Series(what, [day.memory_bytes[what] / 1e6 for day in days], numbers) for what in last.memory_bytes
            ],
        ),
    ]
    settings: dict[str, object] = {
        "days": len(days),
        "seconds": growth.seconds,
        "partitions": growth.partitions,
        "rewind_hours": RETENTION_SECONDS / HOUR,
    }
    return conditions.record(
        f"growth-{growth.seconds:g}s", settings, _make_figures(days), panels, {"days": msgspec.to_builtins(days)}
    )
