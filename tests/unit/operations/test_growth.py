"""Housekeeping measures growth, and the cost of a read of it does not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations import growth
from lockstep.operations.growth import (
    FileKind,
    FilesTotal,
    GrowthSample,
    compute_growth,
    prune_samples,
    read_growth,
    take_sample,
)
from lockstep.storage import LocalStorage
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0
BEGAN = 1_000 * DAY


def sample(day: float, **sizes: int) -> GrowthSample:
    return GrowthSample(
        BEGAN + day * DAY, {FileKind[name.upper()]: FilesTotal(1, size) for name, size in sizes.items()}
    )


def test_every_file_has_one_kind_and_what_no_version_names_is_replaced(tmp_path: Path) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    for _ in range(3):
        run.batch()
    run.file(100, 2, "2026-01-01T00")
    found = take_sample(run.folders).kinds
    assert {kind: total.files for kind, total in found.items() if kind is not FileKind.LOGS} == {
        FileKind.ROWS: 3,
        FileKind.REPLACED: 1,
        FileKind.LEDGER: 3,
    }
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(stored) == sum(total.files for total in found.values())
    assert sum(path.stat().st_size for path in stored) == sum(total.bytes for total in found.values())


def test_the_forecast_goes_on_at_the_rate_of_the_last_week() -> None:
    samples = [sample(0, rows=0), sample(3, rows=300, logs=50), sample(10, rows=1000, logs=50)]
    found = compute_growth(samples)
    rows, logs = found.kinds
    assert (rows.bytes, rows.bytes_a_day, rows.bytes_in_30_days) == (1000, 100.0, 4000)
    assert (logs.bytes_a_day, logs.bytes_in_30_days) == (0.0, 50)
    assert (found.files, found.bytes, found.bytes_in_30_days) == (2, 1050, 4050)


def test_one_sample_gives_sizes_and_no_forecast() -> None:
    found = compute_growth([sample(0, rows=7)])
    assert (found.bytes, found.bytes_in_30_days, found.kinds[0].bytes_a_day) == (7, None, None)


def test_what_shrinks_is_not_less_than_nothing_in_30_days() -> None:
    (kind,) = compute_growth([sample(0, rows=1000), sample(5, rows=10)]).kinds
    assert (kind.bytes_a_day, kind.bytes_in_30_days) == (-198.0, 0)


def test_hourly_samples_of_a_year_become_some_eighty() -> None:
    samples: list[GrowthSample] = []
    for hour in range(24 * 365):
        samples = prune_samples([*samples, sample(hour / 24, rows=hour)])
    assert len(samples) == 49 + 33
    assert [each.at for each in samples] == sorted(each.at for each in samples)
    assert compute_growth(samples).kinds[0].bytes_a_day == 24.0


def test_a_sample_of_a_clock_that_was_ahead_is_dropped() -> None:
    assert [each.at for each in prune_samples([sample(9), sample(1), sample(2)])] == [BEGAN + DAY, BEGAN + 2 * DAY]


def test_housekeeping_records_it_and_a_look_reads_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    run.batch(full=True)
    assert read_growth(run.folders) is None
    assert run_housekeeping(run.folders, retention_seconds=3600, plan_only=True).growth is None
    done = run_housekeeping(run.folders, retention_seconds=3600).growth
    listed: list[str] = []
    monkeypatch.setattr(LocalStorage, "find_files", lambda *_: listed.append("listed"))
    assert read_growth(run.folders) == done
    assert listed == []
    (run.folders.control / growth.SAMPLES_FILE).write_bytes(msgspec.json.encode({"of": "another release"}))
    assert read_growth(run.folders) is None
