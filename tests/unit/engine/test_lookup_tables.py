"""Lookup tables: workers load them, and the driver pins them."""

from __future__ import annotations

import enum
import pickle
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lockstep import DecimalType, Lookup
from lockstep.engine.driver import lookup_pins
from lockstep.engine.driver.lookup_pins import LookupPins
from lockstep.engine.executor import lookup_table
from lockstep.engine.executor.lookup_table import LookupCache, LookupUnusable, load_lookup, open_lookup
from lockstep.engine.protocol import BatchIdentity, TaskSpec
from lockstep.model.column_types import Int32
from lockstep.model.lookup_version import LookupVersion
from lockstep.storage import FileStatus
from tests.support.weighing_stream import WEIGHTS, Weight, write_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AT = datetime(2026, 1, 31, tzinfo=UTC)


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Every(msgspec.Struct, frozen=True, kw_only=True):
    """A column of each plain kind."""

    key: int
    text: str
    raw: bytes | None
    flag: bool
    ratio: float
    price: Annotated[Decimal, DecimalType(10, 2)]
    at: datetime
    day: date | None = None
    side: Side = Side.BUY
    unit: Literal["kg", "g"] = "kg"
    small: Int32 = 0


EVERY = Lookup("every", "every", key="key", row=Every)
ROW = Every(
    key=7, text="ü", raw=b"\xff", flag=True, ratio=0.5, price=Decimal("1.25"), at=AT, side=Side.SELL, unit="g", small=3
)
COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "key": ([7, None], pa.int32()),
    "text": (["ü", "of no key"], pa.string()),
    "raw": ([b"\xff", None], pa.binary()),
    "flag": ([True, None], pa.bool_()),
    "ratio": ([0.5, None], pa.float32()),
    "price": ([Decimal("1.2"), None], pa.decimal128(9, 1)),
    "at": ([AT, None], pa.timestamp("us", tz="UTC")),
    "day": ([None, None], pa.date32()),
    "side": (["sell", None], pa.string()),
    "unit": (["g", None], pa.string()),
    "small": ([3, None], pa.int16()),
}


def write_every(table: Path, changes: Mapping[str, tuple[list[Any], pa.DataType]] | None = None) -> LookupVersion:
    columns = {**COLUMNS, **(changes or {})}
    rows = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    return version_of("every", table)


def version_of(name: str, table: Path) -> LookupVersion:
    opened = DeltaTable(table)
    return LookupVersion(name=name, version=opened.version(), table_id=str(opened.metadata().id))


def test_each_plain_type_is_read_as_declared_and_rows_without_key_are_left_out(tmp_path: Path) -> None:
    pinned = write_every(tmp_path)
    assert load_lookup(EVERY, tmp_path, pinned) == {7: msgspec.structs.replace(ROW, price=Decimal("1.2"))}


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("key", ([2**40, None], pa.int64()), ""),
        ("small", ([3, None], pa.int64()), "column small is int64, wanted int32"),
        ("price", ([Decimal("1.255"), None], pa.decimal128(10, 3)), "column price is decimal128(10, 3), wanted"),
        ("ratio", ([1, None], pa.int64()), "column ratio is int64, wanted double"),
        ("flag", (["yes", None], pa.string()), "column flag is string, wanted bool"),
        ("at", ([datetime(2026, 1, 31), None], pa.timestamp("us")), "column at is timestamp[us], wanted"),  # noqa: DTZ001  # a time without a zone
    ],
)
def test_a_column_is_of_its_type_or_of_a_narrower_one(
    tmp_path: Path, name: str, found: tuple[list[Any], pa.DataType], said: str
) -> None:
    write_every(tmp_path, {name: found})
    if not said:
        open_lookup(EVERY, tmp_path)
        return
    with pytest.raises(LookupUnusable) as wrong:
        open_lookup(EVERY, tmp_path)
    assert wrong.value.problem.startswith(f"lookup every ({tmp_path}, version 0): {said}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"side": (["hold", None], pa.string())}, "column side: Invalid enum value 'hold'"),
        ({"unit": (["t", None], pa.string())}, "column unit: Invalid enum value 't'"),
        ({"text": ([None, None], pa.string())}, "column text: Expected `str`, got `null`"),
        ({"at": ([10**18, None], pa.timestamp("us", tz="UTC"))}, "column at: date value out of range"),
        ({"day": ([date(9999, 12, 31), None], pa.date32())}, ""),
        ({"day": ([2_932_897, None], pa.date32())}, r"\+10000-01-01"),
    ],
)
def test_a_value_that_is_none_of_its_type_is_named_by_its_column(
    tmp_path: Path, changes: Mapping[str, tuple[list[Any], pa.DataType]], said: str
) -> None:
    pinned = write_every(tmp_path, changes)
    if not said:
        assert load_lookup(EVERY, tmp_path, pinned)
        return
    with pytest.raises(LookupUnusable, match=said) as wrong:
        load_lookup(EVERY, tmp_path, pinned)
    assert "vacuum" not in wrong.value.next_step


def test_a_key_that_occurs_twice_is_named(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"name": ["a", "b", "b"], "factor": [1, 2, 2]}))
    with pytest.raises(LookupUnusable, match="1 keys occur more than once, such as name = 'b'"):
        load_lookup(WEIGHTS, tmp_path, version_of("weights", tmp_path))


def test_a_table_with_more_rows_than_declared_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": 1, "b": 2})
    pinned = version_of("weights", tmp_path)
    two, one = (Lookup("weights", "weights", key="name", row=Weight, rows_max=most) for most in (2, 1))
    assert len(load_lookup(two, tmp_path, pinned)) == 2
    with pytest.raises(LookupUnusable, match=r"more than 1 rows; raise Lookup\(rows_max=\.\.\.\)"):
        load_lookup(one, tmp_path, pinned)


def test_a_table_that_maps_its_columns_is_refused(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": 1})
    entry = tmp_path / "_delta_log" / f"{0:020d}.json"
    text = entry.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    entry.write_text(text)
    assert "columnMapping" in text
    with pytest.raises(LookupUnusable, match="maps its columns to other names in its files"):
        open_lookup(WEIGHTS, tmp_path)


def test_a_table_with_deletion_vectors_is_refused_before_a_batch_needs_it(tmp_path: Path) -> None:
    rows = pa.table({"name": ["a"], "factor": [1]})
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(tmp_path, rows, configuration=configuration)
    with pytest.raises(LookupUnusable, match="has what cannot be read: deletionVectors") as wrong:
        open_lookup(WEIGHTS, tmp_path)
    assert wrong.value.next_step == "copy it to a table without these features"


def test_a_version_that_was_vacuumed_says_so(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": 1})
    pinned = version_of("weights", tmp_path)
    write_weights(tmp_path, {"a": 2})
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(LookupUnusable, match="not found") as wrong:
        load_lookup(WEIGHTS, tmp_path, pinned)
    assert "vacuum" in wrong.value.next_step


def test_a_worker_loads_each_version_once_and_keeps_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []

    def load(lookup: Lookup[Any], table: Path, pinned: LookupVersion) -> object:
        loaded.append(pinned.version)
        return load_lookup(lookup, table, pinned)

    monkeypatch.setattr(lookup_table, "load_lookup", load)
    versions = []
    for factor in range(3):
        write_weights(tmp_path, {"a": factor})
        versions.append(version_of("weights", tmp_path))
    cache = LookupCache()
    for at in (0, 0, 1, 0, 2, 0, 2, 1):
        rows = cache.load([WEIGHTS], {"weights": tmp_path}, [versions[at]])
        assert rows == {"weights": {"a": Weight("a", at)}}
    assert loaded == [0, 1, 2, 1]


def test_a_batch_keeps_its_versions_and_the_next_one_has_the_newest(tmp_path: Path) -> None:
    pins = LookupPins([WEIGHTS], tmp_path)
    write_weights(tmp_path / "weights", {"a": 1})
    assert [each.version for each in pins.pin(1)] == [0]
    write_weights(tmp_path / "weights", {"a": 2})
    write_weights(tmp_path / "weights", {"a": 3})
    assert [each.version for each in pins.pin(1)] == [0]
    assert [each.version for each in pins.pin(2)] == [2]
    write_weights(tmp_path / "weights", {"a": 4})
    pins.forget()
    assert [each.version for each in pins.pin(2)] == [3]


def test_a_look_at_a_table_that_has_not_changed_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def note(lookup: Lookup[Any], table: Path, version: int | None = None) -> DeltaTable:
        opened.append(table)
        return open_lookup(lookup, table, version)

    monkeypatch.setattr(lookup_pins, "open_lookup", note)
    write_weights(tmp_path / "weights", {"a": 1})
    pins = LookupPins([WEIGHTS], tmp_path)
    found = [pins.pin(number) for number in range(5)]
    write_weights(tmp_path / "weights", {"a": 2})
    found += [pins.pin(number) for number in range(5, 10)]
    assert [each.version for (each,) in found] == [0] * 5 + [1] * 5
    assert opened == [tmp_path / "weights"]


def test_a_table_that_was_made_anew_is_seen_whatever_its_version(tmp_path: Path) -> None:
    table = tmp_path / "weights"
    pins = LookupPins([WEIGHTS], tmp_path)
    for number, versions in enumerate((2, 2, 1, 3)):
        shutil.rmtree(table, ignore_errors=True)
        for factor in range(versions):
            write_weights(table, {"a": factor})
        assert pins.pin(number) == (version_of("weights", table),)


def test_a_version_that_was_written_again_after_a_restore_is_loaded_again(tmp_path: Path) -> None:
    """A table restored from a copy of its folder keeps its id, and the next commit has an earlier number again."""
    table = tmp_path / "weights"
    copy = tmp_path / "copy"
    pins = LookupPins([WEIGHTS], tmp_path)
    cache = LookupCache()

    def load(number: int) -> object:
        pinned = pins.pin(number)
        return cache.load([WEIGHTS], {"weights": table}, pinned, pins.entries)["weights"]

    write_weights(table, {"a": 1})
    shutil.copytree(table, copy)
    write_weights(table, {"a": 2})
    before = pins.pin(1)
    assert load(1) == {"a": Weight("a", 2)}
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    write_weights(table, {"a": 30})
    assert load(2) == {"a": Weight("a", 30)}
    assert pins.pin(2) == before


def test_a_cleaned_up_log_is_no_other_table(tmp_path: Path) -> None:
    table = tmp_path / "weights"
    pins = LookupPins([WEIGHTS], tmp_path)
    write_weights(table, {"a": 1})
    write_weights(table, {"a": 2})
    before = pins.pin(1)
    DeltaTable(table).create_checkpoint()
    entries = [table / "_delta_log" / f"{version:020d}.json" for version in (0, 1)]
    newest = entries[1].read_bytes()
    for entry in entries:
        entry.unlink()
    assert [pins.pin(2), pins.pin(3)] == [before, before]
    entries[1].write_bytes(newest)  # delta-rs writes no version after a version without its entry
    write_weights(table, {"a": 3})
    assert [(each.version, each.table_id) for each in pins.pin(4)] == [(2, before[0].table_id)]


def test_a_column_that_changes_its_type_under_a_run_is_named(tmp_path: Path) -> None:
    table = tmp_path / "weights"
    pins = LookupPins([WEIGHTS], tmp_path)
    write_weights(table, {"a": 1})
    pins.pin(1)
    write_deltalake(table, pa.table({"name": ["a"], "factor": ["1"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(LookupUnusable, match="column factor is string, wanted int64"):
        pins.pin(2)


def test_a_table_that_cannot_be_looked_at_for_a_moment_is_unusable_and_then_read_again(tmp_path: Path) -> None:
    """As in any other outage of a lookup's storage, the batch is retried and the run continues."""
    table = tmp_path / "weights"
    pins = LookupPins([WEIGHTS], tmp_path)
    write_weights(table, {"a": 1})
    before = pins.pin(1)
    log = table / "_delta_log"
    aside = tmp_path / "log"
    log.rename(aside)
    log.symlink_to(log)
    with pytest.raises(LookupUnusable, match=f"lookup weights .*{log}"):
        pins.pin(2)
    log.unlink()
    aside.rename(log)
    assert pins.pin(2) == before


def test_a_folder_that_cannot_be_looked_at_is_no_other_error(tmp_path: Path) -> None:
    """A too long name represents a folder without rights, a refusing object store or a hanging share."""
    with pytest.raises(LookupUnusable, match="lookup weights"):
        open_lookup(WEIGHTS, tmp_path / ("n" * 300), 0)


def test_the_error_arrives_whole_from_a_worker(tmp_path: Path) -> None:
    error = LookupUnusable("weights", tmp_path, 3, "is gone")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert (str(back), back.lookup, back.table, back.version) == (str(error), "weights", tmp_path, 3)


def test_the_versions_of_a_batch_arrive_with_its_tasks() -> None:
    pinned = (LookupVersion(name="weights", version=3, table_id="id"),)
    batch = BatchIdentity(generation=1, epoch=2, number=3, commit_hour="2026-01-01T00", lookups=pinned)
    batch = msgspec.structs.replace(batch, lookup_entries=(FileStatus(10, 1.5, "tag"),))
    task = TaskSpec(batch, ())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=TaskSpec) == task
