"""The Parquet export: each old hour once, complete or absent, equal to the table for readers without Delta."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lockstep.declare.stream import RETENTION_MAX
from lockstep.derived import Codec, Export
from lockstep.errors import DeclarationError, LockstepError, TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.export import export as operation
from lockstep.features.export import write
from lockstep.features.export.dataset import (
    HOUR_PREFIX,
    SOURCE_FILE,
    ExportMismatch,
    keep_options,
    list_exported_hours,
    publish_hour,
    read_manifest,
    take_back_hour,
)
from lockstep.features.export.export import ExportResult, WaitReason, export_stream, plan_export
from lockstep.features.export.publish import CLAIM, STAGING, STALE_SECONDS, _read_claim  # the claims of object stores
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention import rows as retain
from lockstep.features.retention.housekeeping import HousekeepingFailed, run_housekeeping
from lockstep.model.table_schema import IDENTITY
from lockstep.storage import PathRefused
from lockstep.table.commit import HourClosed, raise_rewind_floor
from tests.features.compaction.compacting import wait_for
from tests.features.export.declared import make_stream
from tests.features.export.exporting import STEPS
from tests.support import stream_table
from tests.support.protocol_run import ProtocolRun, folders_in
from tests.support.stream_table import StreamTable, live_files, stored_rows
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep import Stream
    from lockstep.features.export.dataset import ExportOptions, HourManifest
    from lockstep.table.head import Head
    from lockstep.table.layout import StreamFolders
    from lockstep.table.live_files import LiveFile

A0 = ("a", 0)
B0 = ("b", 0)
HOURS = tuple(f"2026-01-01T0{number}" for number in range(5))
PLAIN = make_stream(Export())


@pytest.fixture
def filled(table: StreamTable) -> StreamTable:
    """Five compacted hours of two batches, the last hour open; a rewind can reach the fourth hour."""
    for hour in HOURS:
        for _ in range(2):
            table.batch({A0: 9}, {B0: 5}, hour=hour)
    compact_stream(table.folders)
    table.output.commit(raise_rewind_floor(1, 7))
    return table


def exported_rows(table: StreamTable) -> list[dict[str, Any]]:
    """Return all rows as a reader of plain Parquet returns them, ordered by identity."""
    found = ds.dataset(table.folders.export, format="parquet", partitioning="hive").to_table()
    return sorted(found.to_pylist(), key=lambda row: [row[name] for name in IDENTITY])


def of_hours(rows: list[dict[str, Any]], hours: tuple[str, ...]) -> list[dict[str, Any]]:
    return [row for row in rows if str(row["commit_hour"]) in hours]


def every_file(table: StreamTable) -> dict[Path, tuple[int, int]]:
    """Return inode and time of all files except SOURCE_FILE, the only file that an export replaces."""
    found = [path for path in table.folders.export.rglob("*") if path.is_file() and path.name != SOURCE_FILE]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def test_old_hours_are_written_once_and_are_equal_for_readers_of_plain_parquet(filled: StreamTable) -> None:
    plan = plan_export(PLAIN, filled.folders)
    assert [each.hour for each in plan.hours] == list(HOURS[:3])
    assert [(each.reason, each.hours) for each in plan.waiting] == [(WaitReason.REWIND, 1), (WaitReason.OPEN, 1)]
    assert not filled.folders.export.exists()
    done = export_stream(PLAIN, filled.folders)
    stored = of_hours(stored_rows(filled.folders), HOURS[:3])
    assert (done.hours, done.rows, done.files) == (HOURS[:3], len(stored), 3)
    assert stored == exported_rows(filled)
    query = f"SELECT count(*), sum(number) FROM '{filled.folders.export}/*/*.parquet'"  # noqa: S608  # a test
    counted = duckdb.execute(query).fetchall()
    assert counted == [(len(stored), sum(row["number"] for row in stored))]
    files = every_file(filled)
    assert export_stream(PLAIN, filled.folders).hours == ()
    filled.output.commit(raise_rewind_floor(1, 9))
    assert export_stream(PLAIN, filled.folders).hours == (HOURS[3],)
    assert files.items() <= every_file(filled).items()


def test_rows_keep_the_order_of_the_table_and_the_manifest_says_where_they_came_from(filled: StreamTable) -> None:
    export_stream(PLAIN, filled.folders)
    manifest = read_manifest(filled.folders.export, HOURS[1])
    (file,) = manifest.files
    exported = pq.read_table(filled.folders.export / f"{HOUR_PREFIX}{HOURS[1]}" / file.path, partitioning=None)
    (source,) = manifest.sources
    assert exported.equals(pq.read_table(filled.folders.table / source, partitioning=None))
    assert (manifest.rows, manifest.generation, manifest.below_batch) == (exported.num_rows, 1, 7)
    assert source in live_files(filled.folders)


def test_columns_codec_row_groups_and_partitions_are_as_declared(filled: StreamTable) -> None:
    declared = Export(
        columns=("_topic_id", "number", "_emit_offset", "_row"),
        partition_by=("_topic_id", "flag"),
        codec=Codec.SNAPPY,
        row_group_rows=4,
    )
    export_stream(make_stream(declared), filled.folders)
    files = sorted(filled.folders.export.rglob("*.parquet"))
    folders = {"/".join(path.relative_to(filled.folders.export).parts[1:3]) for path in files}
    expected = {f"topic_id={t}/flag={f}" for t in "ab" for f in ("True", "False", "__HIVE_DEFAULT_PARTITION__")}
    assert folders == expected
    first = pq.ParquetFile(files[0])
    assert first.schema_arrow.names == ["number", "_emit_offset", "_row"]
    assert first.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert max(first.metadata.row_group(n).num_rows for n in range(first.metadata.num_row_groups)) <= 4
    stored = of_hours(stored_rows(filled.folders), HOURS[:3])
    assert sorted((row["_topic_id"], row["number"]) for row in stored) == sorted(
        (row["topic_id"], row["number"])
        for row in ds.dataset(filled.folders.export, partitioning="hive").to_table().to_pylist()
    )


def test_an_empty_text_makes_no_folder_that_spark_refuses(table: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stream_table.reading
    monkeypatch.setattr(
        stream_table, "reading", lambda *at: msgspec.structs.replace(made(*at), text="one" if at[1] % 2 else "")
    )
    for hour in HOURS[:3]:
        table.batch({A0: 4}, hour=hour)
    table.output.commit(raise_rewind_floor(1, 3))
    done = export_stream(make_stream(Export(partition_by=("text", "flag"))), table.folders)
    stored = of_hours(stored_rows(table.folders), HOURS[:2])
    assert (done.hours, done.rows) == (HOURS[:2], len(stored))
    divided = {path.parent.parent.name for path in table.folders.export.rglob("*.parquet")}
    assert divided == {"text=one", "text=__HIVE_DEFAULT_PARTITION__"}
    texts = Counter(ds.dataset(table.folders.export, partitioning="hive").to_table()["text"].to_pylist())
    assert texts == Counter(row["text"] or None for row in stored)


def export_texts(table: StreamTable, monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> ExportResult:
    """Export three hours that are partitioned by these texts."""
    made = stream_table.reading
    monkeypatch.setattr(
        stream_table, "reading", lambda *at: msgspec.structs.replace(made(*at), text=texts[at[1] % len(texts)])
    )
    for hour in HOURS[:3]:
        table.batch({A0: len(texts)}, hour=hour)
    table.output.commit(raise_rewind_floor(1, 3))
    return export_stream(make_stream(Export(partition_by=("text",))), table.folders)


def test_folders_of_texts_are_escaped_as_spark_reads_them(table: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark decodes each escaped byte as a character: an escaped non-ASCII letter would become two."""
    texts = ["ü 日本", "a/b", "50%", "x=1", "..", "line\n", "_under", ".hid", "%41"]
    done = export_texts(table, monkeypatch, texts)
    divided = {path.parent.name for path in table.folders.export.rglob("*.parquet")}
    assert {"text=ü%20日本", "text=a%2Fb", "text=50%25", "text=.."} < divided
    found = ds.dataset(table.folders.export, partitioning="hive").to_table()["text"].to_pylist()
    assert (Counter(found), done.rows) == (
        Counter(row["text"] for row in of_hours(stored_rows(table.folders), HOURS[:2])),
        len(found),
    )


def test_a_text_too_long_for_a_folder_is_refused(table: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableError, match="a value of text is too long for the name of a folder: ü"):
        export_texts(table, monkeypatch, ["ü" * 126])
    assert not list(table.folders.export.rglob("*.parquet"))


def test_an_hour_that_waits_for_compaction_is_not_exported(table: StreamTable) -> None:
    for hour in HOURS[:2]:
        table.batch({A0: 9}, {B0: 5}, hour=hour)
    table.batch({A0: 9}, hour=HOURS[2])
    table.output.commit(raise_rewind_floor(1, 3))
    (waiting, _) = export_stream(PLAIN, table.folders).waiting
    assert (waiting.reason, waiting.hours) == (WaitReason.COMPACTION, 2)


@pytest.mark.parametrize("step", keep_usual(("published",), STEPS))
def test_an_export_that_is_killed_leaves_a_whole_hour_or_none_and_the_next_goes_on(
    filled: StreamTable, step: str
) -> None:
    killed = run_process(filled, step)
    killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL
    published = [HOURS[0]] if step == STEPS[2] else []
    visible = sorted(path.name for path in filled.folders.export.glob(f"{HOUR_PREFIX}*"))
    assert visible == [f"{HOUR_PREFIX}{hour}" for hour in published]
    stored = stored_rows(filled.folders)
    if published:
        assert exported_rows(filled) == of_hours(stored, HOURS[:1])
    done = export_stream(PLAIN, filled.folders)
    assert (done.hours, done.stale_deleted) == (HOURS[len(published) : 3], 0)
    assert exported_rows(filled) == of_hours(stored, HOURS[:3])
    left = list((filled.folders.export / STAGING).iterdir())
    assert len(left) == (step != STEPS[2])
    for folder in left:
        os.utime(folder, (time.time() - 2 * STALE_SECONDS,) * 2)
    assert export_stream(PLAIN, filled.folders).stale_deleted == len(left)


def test_of_two_exports_of_an_hour_one_publishes_and_the_other_drops_its_work(
    filled: StreamTable, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    waiting = run_process(filled, STEPS[1], str(gate))
    wait_for(gate / str(waiting.pid), lambda: waiting.poll() is None)
    assert export_stream(PLAIN, filled.folders).hours == HOURS[:3]
    files = every_file(filled)
    (gate / "go").touch()
    said, _ = waiting.communicate(timeout=600)
    late = msgspec.json.decode(said, type=ExportResult)
    assert (late.hours, late.hours_lost) == ((), 3)
    published = {path: seen for path, seen in files.items() if STAGING not in path.parts}
    assert published == every_file(filled)


def run_process(table: StreamTable, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.features.export.exporting", str(table.folders.root), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_a_batch_that_was_planned_into_an_exported_hour_cannot_be_committed_there(filled: StreamTable) -> None:
    planned = filled.file({A0: 9}, HOURS[1])
    export_stream(PLAIN, filled.folders)
    with pytest.raises(HourClosed, match=HOURS[1]):
        filled.try_batch([planned], HOURS[1])
    before = exported_rows(filled)
    filled.try_batch([filled.file({A0: 9}, HOURS[4])], HOURS[4])
    assert before == exported_rows(filled)


def test_a_dataset_that_is_written_otherwise_or_of_another_table_is_refused(
    filled: StreamTable, tmp_path: Path
) -> None:
    export_stream(PLAIN, filled.folders)
    with pytest.raises(ExportMismatch, match="codec is gzip, and its hours are written with zstd"):
        export_stream(make_stream(Export(codec=Codec.GZIP)), filled.folders)
    other = StreamTable(tmp_path / "other")
    other.batch({A0: 9})
    with pytest.raises(ExportMismatch, match="table_id is"):
        export_stream(make_stream(Export(folder=str(filled.folders.export))), other.folders)


@dataclass
class Rewound:
    """A stream with an export, three batches an hour, a savepoint at batch 8, and generation 2 from batch 5 on."""

    run: ProtocolRun
    stream: Stream[Any, Any, Any]

    def hours(self, count: int) -> None:
        for _ in range(count):
            for _ in range(3):
                self.run.batch(full=True)
            self.run.clock += timedelta(hours=1)

    def rewind(self, batch: int) -> None:
        self.run.head = self.run.output.base().head
        self.run.rewind(batch)
        self.run.clock += timedelta(hours=1)

    def export(self, floor: int) -> ExportResult:
        """Compact, raise the floor and export."""
        compact_stream(self.run.folders)
        head = self.run.output.base().head
        self.run.output.commit(raise_rewind_floor(head.generation, floor))
        return export_stream(self.stream, self.run.folders)

    @classmethod
    def begin(cls, root: Path) -> Rewound:
        run = ProtocolRun(folders_in(root))
        run.claim()
        made = cls(run, make_stream(Export(), retention=timedelta(hours=2)))
        made.hours(6)
        make_savepoint(run.folders, "S", who="m", why="t", at="8")
        made.rewind(5)
        made.hours(3)
        return made


@pytest.mark.parametrize("floor", [10, 20], ids=["floor before the rewind", "floor behind the rewind"])
def test_a_rewind_to_a_savepoint_of_a_generation_that_had_ended_refuses_the_dataset(tmp_path: Path, floor: int) -> None:
    """Batches 6 to 8 count again but are in no exported hour; batches of generation 2 do not count."""
    made = Rewound.begin(tmp_path)
    assert made.export(floor).hours
    made.rewind(8)
    made.hours(4)
    with pytest.raises(ExportMismatch, match="were rewound, or lack some that count again"):
        made.export(made.run.output.base().head.batch)
    with pytest.raises(HousekeepingFailed, match="rows past retention"):
        run_housekeeping(made.run.folders, retention_seconds=0, stream=made.stream)


def test_a_rewind_to_a_batch_that_no_exported_hour_holds_changes_nothing(tmp_path: Path) -> None:
    made = Rewound.begin(tmp_path)
    first = made.export(20)
    made.rewind(21)
    made.hours(4)
    assert made.export(made.run.output.base().head.batch).hours[0] > first.hours[-1]


def test_an_hour_that_a_rewind_overtakes_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second export publishes the hours after the rewind: the first must check that, or it adds undone rows."""
    made = Rewound.begin(tmp_path)
    later = list[ExportResult]()

    def publish_late(folder: Path, staged: Path, manifest: HourManifest) -> bool:
        monkeypatch.setattr(write, "publish_hour", publish_hour)
        made.rewind(8)
        made.hours(4)
        later.append(made.export(made.run.output.base().head.batch))
        return publish_hour(folder, staged, manifest)

    monkeypatch.setattr(write, "publish_hour", publish_late)
    first = made.export(26)
    assert (first.hours, first.hours_lost) == ((), 4)
    assert list_exported_hours(made.run.folders.export) == frozenset(later[0].hours)
    assert export_stream(made.stream, made.run.folders).hours == ()


@pytest.mark.slow
def test_the_source_of_a_newer_export_is_not_replaced_by_that_of_an_older_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the older source, hours of rewound batches would pass as hours of the table."""
    made = Rewound.begin(tmp_path)
    make_savepoint(made.run.folders, "T", who="m", why="t", at="21")

    def keep_late(folder: Path, options: ExportOptions) -> None:
        """Finish a newer export, up to a later batch, before the older plan records its source."""
        monkeypatch.setattr(operation, "keep_options", keep_options)
        made.export(26)
        keep_options(folder, options)

    monkeypatch.setattr(operation, "keep_options", keep_late)
    made.export(20)
    made.rewind(21)
    made.hours(4)
    with pytest.raises(ExportMismatch, match="were rewound"):
        made.export(made.run.output.base().head.batch)


def test_an_hour_that_leaves_the_export_is_not_dropped_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hour is withdrawn between the plan of a retention and its commit, as by an erasure."""
    made = Rewound(ProtocolRun(folders_in(tmp_path)), make_stream(Export(), retention=timedelta(hours=2)))
    find = []
    made.run.claim()
    made.hours(6)
    first, second = made.export(18).hours[:2]
    find_last = retain._find_last_batch  # noqa: SLF001  # between plan and commit

    def take_back(folders: StreamFolders, head: Head, files: tuple[LiveFile, ...]) -> int:
        monkeypatch.setattr(retain, "_find_last_batch", find_last)
        take_back_hour(made.run.folders.export, second)
        find.append(second)
        return find_last(folders, head, files)

    monkeypatch.setattr(retain, "_find_last_batch", take_back)
    run_housekeeping(made.run.folders, retention_seconds=0, stream=made.stream)
    assert find == [second]
    hours = {row["commit_hour"] for row in stored_rows(made.run.folders)}
    assert (first in hours, second in hours) == (False, True)


def test_retention_takes_the_hours_of_another_table_for_no_export_of_this_one(tmp_path: Path) -> None:
    stream = make_stream(Export(folder=str(tmp_path / "archive")), retention=timedelta(hours=2))
    one, other = (Rewound(ProtocolRun(folders_in(tmp_path / name)), stream) for name in ("one", "other"))
    for each in (one, other):
        each.run.claim()
        each.hours(6)
    one.export(18)
    with pytest.raises(ExportMismatch, match="table_id is"):
        other.export(18)
    with pytest.raises(HousekeepingFailed, match="table_id is"):
        run_housekeeping(other.run.folders, retention_seconds=0, stream=stream)
    assert len(stored_rows(other.run.folders)) == other.run.output.base().head.batch * 2


def test_an_older_copy_that_was_restored_is_not_exported_to_the_folder_of_the_newer_one(tmp_path: Path) -> None:
    made = Rewound.begin(tmp_path / "one")
    stream = make_stream(Export(folder=str(tmp_path / "archive")))
    made.stream = stream
    make_backup(made.run.folders, tmp_path / "backup")
    made.hours(2)
    made.export(20)
    folders = folders_in(tmp_path / "other")
    restore_backup(folders, tmp_path / "backup")
    with pytest.raises(ExportMismatch, match="an older copy was restored"):
        export_stream(stream, folders)


def test_a_folder_in_use_that_is_no_dataset_is_refused_and_stays_as_it_is(filled: StreamTable, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    old = folder / STAGING / "photos"
    old.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * STALE_SECONDS,) * 2)
    before = sorted(folder.rglob("*"))
    for act in (plan_export, export_stream):
        with pytest.raises(ExportMismatch, match="it is no dataset, and has other files or folders: _staging"):
            act(make_stream(Export(folder=str(folder))), filled.folders)
    assert sorted(folder.rglob("*")) == before


def test_only_staging_folders_of_ours_are_deleted(filled: StreamTable) -> None:
    export_stream(PLAIN, filled.folders)
    staging = filled.folders.export / STAGING
    ours = staging / f"{HOURS[0]}-{'0' * 32}"
    other = staging / "photos"
    for each in (ours, other):
        each.mkdir(parents=True)
        os.utime(each, (time.time() - 2 * STALE_SECONDS,) * 2)
    assert export_stream(PLAIN, filled.folders).stale_deleted == 1
    assert (ours.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("claim", [b"../../victim", b"", b"..", b"/etc", b"a/b-" + b"0" * 32, b"\xff" + b"0" * 40])
def test_a_claim_leads_to_a_staging_folder_only(tmp_path: Path, claim: bytes) -> None:
    (tmp_path / CLAIM).write_bytes(claim)
    with pytest.raises(PathRefused):
        _read_claim(tmp_path)


def test_a_damaged_source_is_refused_and_nothing_of_its_hour_is_published(filled: StreamTable) -> None:
    path = next(filled.folders.table / name for name in live_files(filled.folders) if HOURS[1] in name)
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    with pytest.raises(TableError, match=f"hour {HOURS[1]} cannot be exported: the log counts"):
        export_stream(PLAIN, filled.folders)
    assert not (filled.folders.export / f"{HOUR_PREFIX}{HOURS[1]}").exists()
    assert list((filled.folders.export / STAGING).iterdir()) == []


def test_a_source_with_damaged_pages_is_named(filled: StreamTable) -> None:
    path = next(filled.folders.table / name for name in live_files(filled.folders) if HOURS[1] in name)
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(96) + content[100:])
    with pytest.raises(TableError, match=f"{path} cannot be read"):
        export_stream(PLAIN, filled.folders)


def test_retention_drops_nothing_that_is_not_exported(filled: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retain, "find_current_hour", lambda: HOURS[4])
    keep = timedelta(hours=1)
    assert retain.plan_retention(filled.folders, keep, exported=frozenset()).files == ()
    assert retain.plan_retention(filled.folders, keep, exported=frozenset(HOURS[:2])).before_hour == HOURS[2]
    assert retain.plan_retention(filled.folders, keep, exported=frozenset(HOURS[:4])).before_hour == HOURS[3]


def test_a_stream_without_a_declared_export_says_how_to_declare_one(filled: StreamTable) -> None:
    with pytest.raises(LockstepError, match="declares no export"):
        export_stream(make_stream(), filled.folders)


def test_a_dataset_is_divided_by_texts_integers_booleans_and_dates() -> None:
    assert make_stream(Export(partition_by=("text", "number", "flag", "day"))).export is not None
    with pytest.raises(DeclarationError, match=r"(?s)'value': is a column of type double.*texts, integers, booleans"):
        make_stream(Export(partition_by=("value",)))


@pytest.mark.parametrize("retention", [timedelta(minutes=59), timedelta.max, 90])
def test_a_retention_that_no_hour_can_be_computed_from_is_refused(retention: Any) -> None:
    with pytest.raises(DeclarationError, match=r"Stream\.retention"):
        make_stream(retention=retention)
    assert make_stream(retention=RETENTION_MAX).retention == RETENTION_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": ("nope",)},
        {"columns": ("number", "number")},
        {"columns": ("text",), "partition_by": ("text", "day")},
        {"partition_by": ("commit_hour",)},
        {"partition_by": ("number", "number")},
        {"row_group_rows": 0},
        {"folder": "relative"},
        *({"partition_by": (name,)} for name in ("value", "at", "raw", "price", "place", "tags", "_event_time")),
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_no_hour_could_be_written_with_is_refused_when_it_is_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        make_stream(Export(**wrong))
