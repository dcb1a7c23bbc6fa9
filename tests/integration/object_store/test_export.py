"""An export into an object store, which cannot rename folders: an hour is complete once its manifest exists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from lockstep.derived import Export
from lockstep.features.compaction.run import compact_stream
from lockstep.features.export import publish, write
from lockstep.features.export.dataset import (
    list_exported_hours,
    list_whole_hours,
    publish_hour,
    read_manifest,
    take_back_hour,
)
from lockstep.features.export.export import ExportResult, export_stream, list_proven_hours
from lockstep.storage import find_storage
from lockstep.storage.object_store import ObjectStorage
from lockstep.store_clients import open_arrow_client
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.follower_positions import forget_position, read_follower_positions
from tests.features.export.declared import make_stream
from tests.support.stream_table import StreamTable
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from lockstep.features.export.dataset import HourManifest

HOURS = tuple(f"2026-01-01T0{number}" for number in range(4))
EXPORTED = HOURS[:3]
STREAM = make_stream(Export(partition_by=("_topic_id",)))


@pytest.fixture
def filled(prefix: Path) -> StreamTable:
    """A stream of four hours: three can be exported, the last is open."""
    table = StreamTable(prefix)
    for hour in HOURS:
        table.batch({("a", 0): 9}, {("b", 0): 5}, hour=hour)
    compact_stream(table.folders)
    table.output.commit(raise_rewind_floor(1, 4))
    return table


def sort(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows in the order of their identity, without columns that are folders."""
    columns = sorted(set(rows.column_names) - {"_topic_id", "topic_id", "commit_hour"})
    return sorted(rows.select(columns).to_pylist(), key=lambda row: (row["_topic"], row["_offset"], row["_row"]))


def assert_exported(table: StreamTable) -> None:
    """Assert that readers of plain Parquet see each row of the table once."""
    folders = table.folders
    path = "/".join(table.folders.export.parts[1:])
    seen = ds.dataset(path, filesystem=open_arrow_client(), format="parquet", partitioning="hive").to_table()
    held = DeltaTable(find_storage(folders.table).uri(folders.table)).to_pyarrow_table()
    held = held.filter([str(hour) in EXPORTED for hour in held["commit_hour"].to_pylist()])
    assert sort(seen) == sort(held)
    assert list_proven_hours(Export(partition_by=("_topic_id",)), folders) == {*EXPORTED}


def test_hours_are_exported_once(filled: StreamTable) -> None:
    done = export_stream(STREAM, filled.folders)
    assert (done.hours, done.files) == (EXPORTED, 6)
    assert_exported(filled)
    assert export_stream(STREAM, filled.folders).hours == ()
    (position,) = read_follower_positions(filled.folders.root).read
    assert (position.kind, position.name, position.sources[0].batch) == ("export", STREAM.name, 3)
    assert forget_position(filled.folders.root, position.follower)
    assert read_follower_positions(filled.folders.root).read == ()
    assert find_storage(filled.folders.export).list_names(filled.folders.export / publish.STAGING) == []


def test_of_two_exports_one_publishes(filled: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    faster = list[ExportResult]()

    def publish_late(folder: Path, staged: Path, manifest: HourManifest) -> bool:
        monkeypatch.setattr(write, "publish_hour", publish_hour)
        faster.append(export_stream(STREAM, filled.folders))
        return publish_hour(folder, staged, manifest)

    monkeypatch.setattr(write, "publish_hour", publish_late)
    slower = export_stream(STREAM, filled.folders)
    assert (faster[0].hours, slower.hours, slower.hours_lost) == (EXPORTED, (), 3)
    assert_exported(filled)


class Killed(BaseException):
    """The process ends without cleanup."""


@pytest.mark.parametrize("copied", first_usual(1, [2, 1, 0]))
def test_what_a_killed_export_left_is_no_whole_hour_and_is_written_again_after_a_day(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    export = filled.folders.export
    copies = list[Path]()

    def copy_until_killed(self: ObjectStorage, path: Path, target: Path) -> None:
        if len(copies) == copied:
            raise Killed
        copies.append(target)
        copy(self, path, target)

    def die(*_: object) -> None:
        raise Killed

    copy = ObjectStorage.copy
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "copy", copy_until_killed)
        for name in ("delete", "delete_folder"):
            patch.setattr(ObjectStorage, name, die)
        with pytest.raises(Killed):
            export_stream(STREAM, filled.folders)
    assert list_exported_hours(export) == {HOURS[0]}
    assert list_whole_hours(export, HOURS) == frozenset()
    assert export_stream(STREAM, filled.folders).hours == EXPORTED[1:]
    monkeypatch.setattr(publish, "STALE_SECONDS", -1.0)
    again = [export_stream(STREAM, filled.folders) for _ in range(2)]
    assert [(done.stale_deleted, done.hours) for done in again] == [(1, ()), (0, EXPORTED[:1])]
    assert_exported(filled)


def test_an_hour_that_could_not_be_published_leaves_nothing(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "copy", fail)
        with pytest.raises(OSError, match="away"):
            export_stream(STREAM, filled.folders)
    assert list_exported_hours(filled.folders.export) == frozenset()
    assert export_stream(STREAM, filled.folders).hours == EXPORTED
    assert_exported(filled)


def test_an_hour_that_was_overtaken_is_withdrawn(filled: StreamTable, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [True, False]
    monkeypatch.setattr(
        "lockstep.features.export.export._Export.is_current", lambda *_: answers.pop(0) if answers else True
    )
    assert export_stream(STREAM, filled.folders).hours == EXPORTED[1:]
    assert export_stream(STREAM, filled.folders).hours == EXPORTED[:1]
    assert_exported(filled)


@pytest.mark.parametrize("deletions", first_usual(1, range(3)))
def test_an_hour_whose_withdrawal_was_killed_is_written_again_by_the_next_export(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    """A kill after the deletion of its manifest, files or claim must not leave the hour claimed forever."""
    export_stream(STREAM, filled.folders)
    with monkeypatch.context() as patch:
        die_after(patch, deletions + 1)
        with pytest.raises(Killed):
            take_back_hour(filled.folders.export, HOURS[0])
    assert list_whole_hours(filled.folders.export, HOURS) == {*EXPORTED[1:]}
    for name in ("WITHDRAWING_SECONDS", "STALE_SECONDS"):
        monkeypatch.setattr(publish, name, -1.0)
    export_stream(STREAM, filled.folders)
    assert_exported(filled)
    assert find_storage(filled.folders.export).list_names(filled.folders.export / publish.STAGING) == []


def die_after(patch: pytest.MonkeyPatch, deletions: int) -> None:
    """Kill the process after a number of deletions, before the next."""
    left = [None] * deletions

    def limit(real: Callable[..., Any]) -> Callable[..., Any]:
        def delete(*given: Any) -> Any:
            if not left:
                raise Killed
            left.pop()
            return real(*given)

        return delete

    for name in ("delete", "delete_files", "delete_folder"):
        patch.setattr(ObjectStorage, name, limit(getattr(ObjectStorage, name)))


@pytest.mark.parametrize("deletions", first_usual(1, [1, 0, 2]))
def test_an_hour_that_was_deleted_in_part_has_its_claim_and_is_deleted_later(
    filled: StreamTable, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    """Without the claim all later exports would fail."""
    copy = ObjectStorage.copy

    def fail_late(self: ObjectStorage, path: Path, target: Path) -> None:
        if path.name == "_manifest.json":
            raise OSError("away")
        copy(self, path, target)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "copy", fail_late)
        die_after(patch, deletions)
        with pytest.raises(Killed):
            export_stream(STREAM, filled.folders)
    monkeypatch.setattr(publish, "STALE_SECONDS", -1.0)
    for _ in range(2):
        export_stream(STREAM, filled.folders)
    assert_exported(filled)


def test_the_dataset_may_lie_elsewhere_in_a_store(filled: StreamTable, prefix: Path) -> None:
    elsewhere = make_stream(Export(folder=f"{find_storage(prefix).uri(prefix)}/archive"))
    assert export_stream(elsewhere, filled.folders).hours == EXPORTED
    assert read_manifest(prefix / "archive", HOURS[0]).rows > 0
