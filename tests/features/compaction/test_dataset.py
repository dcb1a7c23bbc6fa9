"""Compaction of a foreign Parquet dataset: the same rows in the same order, published atomically."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from lockstep.features.compaction import dataset as module
from lockstep.features.compaction.dataset import (
    MANIFEST,
    POINTER,
    STAGING,
    compact_dataset,
    plan_dataset,
)
from lockstep.operations.plan_frame import Refused
from lockstep.storage import LocalStorage, NeedsFileSystem

ROOT = Path(__file__).parents[3]
DAYS = ("day=2026-01-01", "day=2026-01-02")
FILES = 5


def rows(first: int, **more: pa.Array[Any]) -> pa.Table:
    """Return forty rows with columns of many types, nulls and NaN."""
    numbers = list(range(first, first + 40))
    columns: dict[str, pa.Array[Any]] = {
        "number": pa.array(numbers),
        "value": pa.array([None if n % 7 == 0 else float("nan") if n % 5 == 0 else n / 3 for n in numbers]),
        "large": pa.array([2**64 - 1 - n for n in numbers], pa.uint64()),
        "text": pa.array([f"text {n % 3}" for n in numbers]).dictionary_encode(),
        "long": pa.array([None if n % 2 else "ü" * (n % 4) for n in numbers], pa.large_string()),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in numbers]),
        "clock": pa.array([time(n % 24) for n in numbers]),
        "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(20, 4)),
        "tags": pa.array([[n] * (n % 3) for n in numbers]),
    }
    return pa.table(columns | more)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two days of five small files each, and a temporary folder that readers skip."""
    folder = tmp_path / "readings"
    for day, name in enumerate(DAYS):
        (folder / name).mkdir(parents=True)
        for number in range(FILES):
            pq.write_table(rows(1000 * day + 40 * number), folder / name / f"{number}.parquet")
    (folder / "_temporary").mkdir()
    pq.write_table(rows(9_000), folder / "_temporary" / "half.parquet")
    return folder


def current(dataset: Path) -> Path:
    return dataset.with_name("readings.compacted") / POINTER


def read(folder: Path) -> dict[object, list[object]]:
    """Return the numbers of each day in order, as Arrow reads them."""
    found = ds.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["day", "number"])
    days = found["day"].to_pylist()
    return {day: [n for of, n in zip(days, found["number"].to_pylist(), strict=True) if of == day] for day in set(days)}


def test_small_files_of_each_folder_become_one_with_the_same_rows_in_order(dataset: Path) -> None:
    before = read(dataset)
    plan = plan_dataset(dataset)
    assert (plan.generation, plan.files_before, plan.files_after, plan.folders, plan.rows) == (1, 10, 2, 2, 400)
    assert not current(dataset).exists()
    done = compact_dataset(dataset)
    assert (done.is_published, done.rows, done.current) == (True, 400, str(current(dataset)))
    assert read(current(dataset)) == before
    assert len(list(dataset.rglob("*.parquet"))) == 11
    paths = sorted(current(dataset).resolve().rglob("*.parquet"))
    assert [path.parent.name for path in paths] == list(DAYS)
    everything = pa.concat_tables([pq.read_table(dataset / DAYS[0] / f"{n}.parquet") for n in range(FILES)])
    again = pq.ParquetFile(paths[0]).read()
    assert again.schema.remove_metadata() == everything.schema.remove_metadata()
    assert str(again.to_pylist()) == str(everything.to_pylist())
    counted = [
        duckdb.read_parquet(f"{folder}/day*/*.parquet").aggregate("count(*), sum(number)").fetchall()
        for folder in (dataset, current(dataset))
    ]
    assert counted[0] == counted[1]


def test_a_second_compaction_does_nothing_and_a_new_file_makes_a_new_generation(dataset: Path) -> None:
    compact_dataset(dataset)
    again = compact_dataset(dataset)
    assert (again.is_published, again.plan.reason) == (False, "nothing has changed since the current generation")
    pq.write_table(rows(5_000), dataset / DAYS[1] / "9.parquet")
    done = compact_dataset(dataset)
    assert (done.plan.generation, done.rows, done.removed) == (2, 440, ())
    assert read(current(dataset)) == read(dataset)
    assert plan_dataset(dataset).removable == ("generation-000001",)
    assert compact_dataset(dataset, remove_old=True).removed == ("generation-000001",)
    assert read(current(dataset)) == read(dataset)


@pytest.mark.parametrize("what", ["a file of others", "no manifest", "a linked manifest", "another name"])
def test_what_no_manifest_of_ours_names_is_not_deleted(dataset: Path, tmp_path: Path, what: str) -> None:
    compact_dataset(dataset)
    pq.write_table(rows(5_000), dataset / DAYS[1] / "9.parquet")
    compact_dataset(dataset)
    home = dataset.with_name(f"{dataset.name}.compacted")
    old = home / "generation-000001"
    manifest = home / "generation-000001" / MANIFEST
    if what == "a file of others":
        (old / "photo").write_bytes(b"mine")
    elif what == "another name":
        old.rename(home / "generation-of-1990")
    else:
        manifest.rename(tmp_path / "elsewhere")
        if what == "a linked manifest":
            manifest.symlink_to(tmp_path / "elsewhere")
    before = sorted(home.rglob("*"))
    if what == "another name":
        assert compact_dataset(dataset, remove_old=True).removed == ()
    else:
        with pytest.raises(Refused):
            compact_dataset(dataset, remove_old=True)
    assert sorted(home.rglob("*")) == before


def test_large_files_stay_as_they_are_and_part_the_others(dataset: Path) -> None:
    target = 2 * (dataset / DAYS[0] / "0.parquet").stat().st_size + 2_000
    pq.write_table(pa.concat_tables([rows(3_000 + 40 * n) for n in range(20)]), dataset / DAYS[0] / "2a.parquet")
    done = compact_dataset(dataset, target_bytes=target)
    assert read(current(dataset)) == read(dataset)
    assert [len(part.files) for part in done.plan.bins] == [2, 1, 1, 2, 2, 2, 1]
    copied = current(dataset).resolve() / DAYS[0] / "part-00002.parquet"
    before = read(current(dataset))
    assert copied.read_bytes() == (dataset / DAYS[0] / "2a.parquet").read_bytes()
    pq.write_table(rows(9_000), dataset / DAYS[0] / "2a.parquet")  # rewritten in place: the same inode
    assert read(current(dataset)) == before


def test_columns_that_a_file_lacks_are_null_and_other_types_are_refused(dataset: Path) -> None:
    pq.write_table(rows(5_000, more=pa.array(range(40))).drop_columns(["long"]), dataset / DAYS[1] / "9.parquet")
    compact_dataset(dataset)
    found = pq.ParquetFile(next((current(dataset).resolve() / DAYS[1]).iterdir())).read()
    assert (found["more"].null_count, found["long"].null_count) == (200, 40 + 100)
    pq.write_table(pa.table({"number": ["one"]}), dataset / DAYS[1] / "a.parquet")
    with pytest.raises(Refused, match=r"day=2026-01-02/a.parquet has columns of other types.*number"):
        plan_dataset(dataset)


@pytest.mark.parametrize("refuses", [compact_dataset, plan_dataset])
def test_a_dataset_in_an_object_store_is_refused_as_such(refuses: Callable[[Path], object]) -> None:
    with pytest.raises(NeedsFileSystem, match="s3://bucket/readings is in an object store"):
        refuses(Path("s3://bucket/readings"))


def test_what_is_no_plain_dataset_is_refused_with_the_next_step(dataset: Path, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "delta", pa.table({"number": [1]}))
    with pytest.raises(Refused, match="is a Delta table") as refused:
        compact_dataset(tmp_path / "delta")
    assert "lockstep compact STREAM" in refused.value.next_step
    with pytest.raises(Refused, match=r"delta: is a Delta table"):
        compact_dataset(tmp_path)  # of the table below it; deleted files are not counted
    with pytest.raises(Refused, match="holds no Parquet files"):
        compact_dataset(tmp_path / "none")
    pq.write_table(pa.table({"x": pa.array([1], pa.decimal256(50))}), dataset / "x.parquet")
    with pytest.raises(Refused, match="cannot be proven: no digest is defined for columns of type decimal256"):
        compact_dataset(dataset)
    (dataset / "x.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(Refused, match=r"x.parquet cannot be read"):
        compact_dataset(dataset)
    (dataset / "x.parquet").unlink()
    pq.write_table(rows(7_000), dataset / DAYS[0] / "7.parq")  # Spark and Arrow read it under any name
    with pytest.raises(Refused, match=r"1 Parquet files are not named \*.parquet, day=2026-01-01/7.parq first"):
        compact_dataset(dataset)
    (dataset / DAYS[0] / "7.parq").write_text("notes")
    compact_dataset(dataset)
    with pytest.raises(Refused, match="is a generation of a compaction"):
        compact_dataset(current(dataset))
    (dataset / DAYS[0] / "3.parquet").unlink()
    with pytest.raises(Refused, match=r"1 files of which generation-000001 was made are gone, day=2026-01-01/3"):
        compact_dataset(dataset)


def test_a_folder_that_is_a_link_is_refused_as_its_rows_would_be_missing(dataset: Path, tmp_path: Path) -> None:
    (dataset / "empty" / "too").mkdir(parents=True)
    (dataset / DAYS[1]).rename(tmp_path / "another disk")
    (dataset / DAYS[1]).symlink_to(tmp_path / "another disk")
    with pytest.raises(Refused, match=r"1 folders are links, day=2026-01-02 first"):
        compact_dataset(dataset)
    assert not current(dataset).exists()
    (dataset / DAYS[1]).unlink()
    (tmp_path / "another disk").rename(dataset / DAYS[1])
    assert compact_dataset(dataset).rows == 400


def test_a_file_that_changes_meanwhile_or_is_written_wrongly_is_not_published(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_more(folder: Path, *arguments: object) -> object:
        pq.write_table(rows(7_000), dataset / DAYS[0] / "late.parquet")
        return written(folder, *arguments)

    written = vars(module)["_write_bin"]
    monkeypatch.setattr(module, "_write_bin", write_more)
    with pytest.raises(Refused, match="was changed while it was read"):
        compact_dataset(dataset)
    monkeypatch.setattr(module, "_write_bin", written)
    monkeypatch.setattr(module, "regroup_rows", lambda groups, _: list(groups)[:-1])
    with pytest.raises(Refused, match=r"240 rows with digest .* became 200"):
        compact_dataset(dataset)
    assert list(current(dataset).parent.iterdir()) == []


def test_of_two_at_once_one_publishes_and_the_pointer_never_goes_back(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter([lambda: pq.write_table(rows(5_000), dataset / DAYS[1] / "9.parquet")])

    def move_late(self: LocalStorage, path: Path, target: Path) -> None:
        if act := next(others, None):
            compact_dataset(dataset)
            act()
            assert compact_dataset(dataset).plan.generation == 2
        move(self, path, target)

    move = LocalStorage.move
    monkeypatch.setattr(LocalStorage, "move", move_late)
    assert not compact_dataset(dataset).is_published
    assert current(dataset).resolve().name == "generation-000002"
    assert not [path for path in current(dataset).parent.iterdir() if path.name.startswith(STAGING)]


LATE = ("move", "point")
EARLY = ("open_pending", "copy", "replace")


@pytest.mark.parametrize("step", [*LATE, *(pytest.param(step, marks=pytest.mark.slow) for step in EARLY)])
def test_killed_at_a_step_it_leaves_the_old_generation_or_the_new_one(dataset: Path, step: str) -> None:
    compact_dataset(dataset)
    pq.write_table(pa.concat_tables([rows(5_000 + 40 * n) for n in range(9)]), dataset / DAYS[1] / "9.parquet")
    before = read(current(dataset))
    code = (
        "import os, signal, sys; from pathlib import Path; from lockstep.storage import LocalStorage\n"
        "from lockstep.features.compaction.dataset import compact_dataset\n"
        f"LocalStorage.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "compact_dataset(Path(sys.argv[1]), target_bytes=int(sys.argv[2]))"
    )
    target = 2 * (dataset / DAYS[1] / "9.parquet").stat().st_size
    command = [sys.executable, "-c", code, str(dataset), str(target)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert read(current(dataset)) == before
    done = compact_dataset(dataset, target_bytes=target)
    assert done.is_published is (step != "point")
    assert read(current(dataset)) == read(dataset)
    assert (current(dataset) / MANIFEST).exists()
