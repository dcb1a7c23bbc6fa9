"""Growth of a stream on disk: measured by housekeeping, read by everybody else.

A measurement lists every folder of the stream. Housekeeping does so once an hour and keeps the samples in one small
file, so that a status costs one read for a stream of any size.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import msgspec
import pyarrow as pa

from lockstep.model.decoding import decode_json
from lockstep.operations.plan_frame import Labelled, Unit
from lockstep.storage import find_storage
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders

SAMPLES_FILE = "growth.json"
HOUR_SECONDS = 3_600.0
DAY_SECONDS = 86_400.0
RECENT_SECONDS = 2 * DAY_SECONDS
OLDEST_SECONDS = 35 * DAY_SECONDS
"""Each recent sample is kept, of older ones the first of a day: some 80 samples, 40 kB."""
RATE_SECONDS = 7 * DAY_SECONDS
"""The rate is that of a week, which has the same days in it as any other."""
FORECAST_DAYS = 30


class FileKind(Enum):
    """The purposes of a stream's files, in the order of a list for people."""

    ROWS = "rows"
    REPLACED = "replaced files"
    LEDGER = "ledger"
    STATE = "state"
    LOGS = "logs"
    QUARANTINE = "quarantine"
    LATE = "late"
    ARCHIVE = "archive"
    OTHER = "other"


class FilesTotal(msgspec.Struct, frozen=True):
    """Number of files, and their bytes."""

    files: int = 0
    bytes: int = 0


class GrowthSample(msgspec.Struct, frozen=True):
    """One measurement.

    Attributes:
        at: Time, in seconds since 1970 (UTC).
        kinds: Files by kind.
    """

    at: float
    kinds: dict[FileKind, FilesTotal]


class KindGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of the files of one kind.

    Attributes:
        kind: Their purpose.
        files: Their number.
        bytes: Their bytes.
        bytes_a_day: Growth a day, of the last week or as long as there are samples; None before the second sample.
        bytes_in_30_days: Forecast at this rate.
    """

    kind: FileKind
    files: int
    bytes: int
    bytes_a_day: float | None = None
    bytes_in_30_days: int | None = None


class DiskGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of a stream on disk.

    Attributes:
        measured_at: Time of the newest measurement (UTC).
        kinds: By kind; those without files are left out.
        files: All files.
        bytes: Their bytes.
        bytes_in_30_days: Forecast; None before the second sample.
    """

    measured_at: datetime
    kinds: tuple[KindGrowth, ...]
    files: int
    bytes: int
    bytes_in_30_days: int | None

    def list_facts(self) -> tuple[Labelled, ...]:
        """Return the figures of a page; Dagster plots them over time."""
        return (
            Labelled("files on disk", self.files),
            Labelled("bytes on disk", self.bytes, Unit.BYTES),
            Labelled("bytes in 30 days", self.bytes_in_30_days, Unit.BYTES),
            *(Labelled(f"bytes of {each.kind.value}", each.bytes, Unit.BYTES) for each in self.kinds),
        )


def take_sample(folders: StreamFolders) -> GrowthSample:
    """List all files of a stream. Files that the newest version of the table does not name count as replaced."""
    live = _list_live(folders.table)
    found: dict[FileKind, list[int]] = defaultdict(list)
    for name, status in find_storage(folders.root).walk_files(folders.root / folders.stream):
        found[_find_kind(name, live)].append(status.size)
    return GrowthSample(time.time(), {kind: FilesTotal(len(sizes), sum(sizes)) for kind, sizes in found.items()})


def record_growth(folders: StreamFolders, sample: GrowthSample) -> DiskGrowth:
    """Add a sample to those of the stream; returns the growth since them."""
    samples = prune_samples([*_read_samples(folders), sample])
    path = folders.control / SAMPLES_FILE
    find_storage(path).replace(path, msgspec.json.encode(samples))
    return compute_growth(samples)


def read_growth(folders: StreamFolders) -> DiskGrowth | None:
    """The growth as of the newest housekeeping; None before the first."""
    samples = _read_samples(folders)
    if samples:
        return compute_growth(samples)
    return None


def prune_samples(samples: Sequence[GrowthSample]) -> list[GrowthSample]:
    """The samples that are kept, by time: the recent ones, and the first of each older day. Pure."""
    # The last is the newest: samples with a later time are of a wrong clock.
    newest = samples[-1].at
    days = set[float]()
    recorded = []
    for sample in sorted(samples, key=lambda each: each.at):
        day = sample.at // DAY_SECONDS
        # All recent samples for the rate of a week, and one a day before that.
        recent = newest - sample.at <= RECENT_SECONDS
        if sample.at <= newest and (recent or (day not in days and newest - sample.at <= OLDEST_SECONDS)):
            recorded.append(sample)
            days.add(day)
    return recorded


def compute_growth(samples: Sequence[GrowthSample]) -> DiskGrowth:
    """Sizes as of the newest sample, and rates since the oldest of the last week. Pure."""
    newest = samples[-1]
    # Of a week, which has the same days in it as any other.
    since = next(sample for sample in samples if newest.at - sample.at <= RATE_SECONDS)
    days = (newest.at - since.at) / DAY_SECONDS
    growths = list[KindGrowth]()
    for kind in FileKind:
        if kind in newest.kinds:
            growths.append(_grow(kind, newest.kinds[kind], since.kinds.get(kind, FilesTotal()), days))
    kinds = tuple(growths)
    forecasts = [growth.bytes_in_30_days for growth in kinds if growth.bytes_in_30_days is not None]
    bytes_in_30_days = None
    # A sum without one kind would pass for the forecast of all.
    if len(forecasts) == len(kinds):
        bytes_in_30_days = sum(forecasts)
    return DiskGrowth(
        measured_at=datetime.fromtimestamp(newest.at, UTC),
        kinds=kinds,
        files=sum(each.files for each in kinds),
        bytes=sum(each.bytes for each in kinds),
        bytes_in_30_days=bytes_in_30_days,
    )


def _grow(kind: FileKind, now: FilesTotal, before: FilesTotal, days: float) -> KindGrowth:
    if days * DAY_SECONDS < HOUR_SECONDS / 2:
        return KindGrowth(kind=kind, files=now.files, bytes=now.bytes)
    rate = (now.bytes - before.bytes) / days
    forecast = max(0, round(now.bytes + rate * FORECAST_DAYS))
    return KindGrowth(
        kind=kind, files=now.files, bytes=now.bytes, bytes_a_day=round(rate, 1), bytes_in_30_days=forecast
    )


_FOLDERS = {
    kind.value: kind for kind in (FileKind.LEDGER, FileKind.STATE, FileKind.QUARANTINE, FileKind.LATE, FileKind.ARCHIVE)
}


def _find_kind(name: str, live: frozenset[str]) -> FileKind:
    """The kind of a file, by its path below the stream's folder."""
    folder, _, below = name.partition("/")
    if "/_delta_log/" in name:
        return FileKind.LOGS
    if folder == "table":
        return FileKind.ROWS if below in live else FileKind.REPLACED
    return _FOLDERS.get(folder, FileKind.OTHER)


def _list_live(table: Path) -> frozenset[str]:
    actions = pa.table(delta_log.open_delta_table(table).get_add_actions())
    return frozenset(map(str, actions.column("path").to_pylist()))


def _read_samples(folders: StreamFolders) -> list[GrowthSample]:
    """The samples by time; empty without a file, or with that of another release."""
    path = folders.control / SAMPLES_FILE
    try:
        return decode_json(find_storage(path).read(path), list[GrowthSample])
    except (FileNotFoundError, msgspec.DecodeError):
        return []
