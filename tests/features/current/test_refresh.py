"""Refreshes of a current table: causes of a remake, changed buckets, lost races, kills, deleted files."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from dagster import materialize
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner
from typing_extensions import override

from lockstep import NoIntegrity, SessionStart, TableFold
from lockstep.cli.app import app
from lockstep.errors import CommitUnknown, DeclarationError, LockstepError, TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.current import commands, history, refresh
from lockstep.features.current.asset import make_current_asset
from lockstep.features.current.history import RemakeCause
from lockstep.features.current.prove import prove_current
from lockstep.features.current.refresh import plan_current, refresh_current
from lockstep.features.current.status import read_current_tables
from lockstep.features.erase import erase
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.operations.followers import DeclaredFollowers
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.stream_table import NoTable
from lockstep.settings import KafkaSettings, Settings
from lockstep.table import delta_log
from lockstep.table.delta_log import NextEntry, RemoveAction
from lockstep.table.parquet import write_file
from lockstep.verify.report import FollowerProof, InvariantStatus
from tests.correctness.verify.shelves import Change, Item, ItemRow, Line, Shelves, shelf_stream
from tests.features.current.histories import drop_rows
from tests.support.offline_rewind import rewind
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LONG = "ü" * 400
NAMES = "abcdefgh"


class LabelledItem(Item, frozen=True):
    """A state row of a later release."""

    label: str = "none"


class LabelledRow(ItemRow, frozen=True):
    """A table row of a later release."""

    label: str | None = None


class LabelledShelves(TableFold[Change, tuple[str, int], LabelledItem, LabelledRow]):
    """The fold of a later release."""

    key = ("name", "place")
    removed = "price"
    envelope = Shelves.envelope

    @override
    def changes(self, message: Change) -> Iterable[tuple[tuple[str, int], LabelledItem | None]]:
        """Return the items with a label."""
        for line in message.lines:
            item = None if line.price is None else LabelledItem(line.price, line.ratio, "new")
            yield (line.name, line.place), item

    @override
    def emit(
        self, message: Change | None, key: tuple[str, int], new: LabelledItem | None, previous: LabelledItem | None
    ) -> LabelledRow:
        """Return the new item."""
        if new is None:
            return LabelledRow(*key, None, None, None)
        return LabelledRow(*key, new.price, new.ratio, None, new.label)


def make_stream() -> Any:
    integrity = NoIntegrity(session_start=SessionStart.FIRST_MESSAGE)
    return dataclasses.replace(shelf_stream(Shelves(), integrity), current=True)


def send(kind: str, name: str, price: int | None = 1, place: int = 0) -> bytes:
    """Return a message with one item."""
    line = Line(name, place, None if price is None else Decimal(price))
    return msgspec.json.encode(Change(kind, 1, 1, [] if kind == "end" else [line]))


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    """A table with a batch: sessions with one row each."""
    made = Offline(make_stream(), tmp_path)
    made.run({"t": [(name, send("snapshot", name)) for name in (*NAMES, LONG)]})
    return made


def refreshed(offline: Offline, **options: bool) -> refresh.CurrentRefresh:
    return refresh_current(offline.stream, offline.folders, **options)


def read_prices(offline: Offline) -> dict[tuple[str, str], int]:
    """Return the price by session and name. Each occurs once."""
    rows = DeltaTable(offline.folders.current).to_pyarrow_table().to_pylist()
    prices = {(row["_session"], row["name"]): int(row["price"]) for row in rows}
    assert len(prices) == len(rows)
    return prices


def prove(offline: Offline) -> FollowerProof:
    (proof,) = prove_current(offline.stream, offline.folders, KafkaSettings())
    return proof


def list_files(offline: Offline) -> set[str]:
    return {path.name for path in offline.folders.current.glob("*.parquet")}


def list_live(offline: Offline) -> set[str]:
    return {path.rsplit("/", 1)[-1] for path in DeltaTable(offline.folders.current).file_uris()}


def test_updates_removals_and_ends_are_applied_to_what_was_there(offline: Offline) -> None:
    assert refreshed(offline).remade is RemakeCause.NEW
    offline.run({"t": [("a", send("update", "a", 7)), ("b", send("update", "b", None)), ("c", send("end", "c"))]})
    offline.run({"t": [("a", send("update", "x", 8)), (LONG, send("update", LONG, None))]})
    done = refreshed(offline)
    assert (done.remade, done.changed, done.rows) == (None, 5, 7)
    prices = dict.fromkeys(((name, name) for name in "defgh"), 1)
    assert read_prices(offline) == prices | {("a", "a"): 7, ("a", "x"): 8}
    assert prove(offline).status is InvariantStatus.PROVEN
    again = refreshed(offline)
    assert (again.version, again.changed) == (done.version, 0)


def test_only_changed_buckets_are_written_and_grown_ones_are_divided_again(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BUCKET_ROWS", 2)
    assert refreshed(offline).buckets == 5
    before = list_live(offline)
    offline.run({"t": [("a", send("update", "a", 7))]})
    done = refreshed(offline)
    assert (done.written_buckets, len(list_live(offline) - before)) == (1, 1)
    offline.run({"t": [("a", send("update", "a", 1, place)) for place in range(1, 40)]})
    refreshed(offline)
    done = refreshed(offline)
    assert (done.remade, done.buckets, done.rows) == (RemakeCause.GROWN, 24, 48)
    assert prove(offline).status is InvariantStatus.PROVEN


def test_rows_that_retention_dropped_stay_also_when_the_table_is_made_again(offline: Offline) -> None:
    refreshed(offline)
    run_in_later_hour(offline, "a", 7)
    run_in_later_hour(offline, "a", 8)
    assert drop_rows(offline).retention is not None
    expected = dict.fromkeys(((name, name) for name in (*NAMES, LONG)), 1) | {("a", "a"): 8}
    assert refreshed(offline).remade is None
    assert read_prices(offline) == expected
    for name in "bcd":
        run_in_later_hour(offline, name, 9)
    drop_rows(offline)
    assert refreshed(offline).remade is RemakeCause.EXPIRED
    assert read_prices(offline) == expected | {(name, name): 9 for name in "bcd"}


def run_in_later_hour(offline: Offline, name: str, price: int) -> None:
    close_hour(offline.folders)
    offline.run({"t": [(name, send("update", name, price))]})


def test_a_rewind_behind_the_refresh_needs_no_remake_and_one_before_it_does(offline: Offline) -> None:
    refreshed(offline)
    offline.run({"t": [("a", send("update", "a", 7))]}, {"t": [("b", send("update", "b", 8))]})
    rewind(offline, 2)
    assert plan_current(offline.stream, offline.folders).remake is None
    done = refreshed(offline)
    assert (done.remade, done.changed) == (None, 1)
    assert read_prices(offline)["a", "a"] == 7
    rewind(offline, 1)
    assert prove(offline).status is InvariantStatus.NOT_PROVEN
    assert refreshed(offline).remade is RemakeCause.UNDONE
    assert read_prices(offline)["a", "a"] == 1


def test_compacted_files_give_no_older_row(offline: Offline) -> None:
    offline.run({"t": [("a", send("update", "a", 7))]})
    refreshed(offline)
    offline.run({"t": [("a", send("update", "b", 8))]})
    close_hour(offline.folders)
    compact_stream(offline.folders)
    done = refreshed(offline)
    assert (done.remade, done.changed) == (None, 1)
    assert prove(offline).status is InvariantStatus.PROVEN


def seed_fault(offline: Offline, fault: str) -> None:
    """Replace the rows of the table by other rows, as a refresh does."""
    rows = DeltaTable(offline.folders.current).to_pyarrow_table()
    current = refresh.read_current_version(offline.folders)
    if fault == "missing row":
        rows = rows.slice(1)
    elif fault == "row twice":
        rows = pa.concat_tables([rows.slice(1), rows.slice(1, 1)])
    elif fault == "row of an ended session":
        rows = rows.set_column(3, "_session", pa.array(["gone", *rows["_session"].to_pylist()[1:]]))
    elif fault == "row of a forgotten partition":
        rows = rows.set_column(2, "_partition", pa.array([9, *rows["_partition"].to_pylist()[1:]], pa.int32()))
    else:
        prices = [Decimal(99), *rows["price"].to_pylist()[1:]]
        at = rows.column_names.index("price")
        rows = rows.set_column(at, "price", pa.array(prices, rows.schema.field("price").type))
    made = write_file(offline.folders.current, rows, prefix="bucket-0", counted_only=True)
    live = delta_log.read_live_files(offline.folders.current, current.version)
    assert current.base is not None
    entry = NextEntry(
        version=current.version + 1,
        kind=refresh.REFRESH,
        adds=(made.action(),),
        removes=tuple(RemoveAction(path, file.size) for path, file in live.items()),
        transactions={"lockstep.version": current.version + 1},
        metadata={refresh.BASE: msgspec.json.encode(current.base).decode()},
    )
    delta_log.append_entry(offline.folders.current, lambda: entry)


@pytest.mark.parametrize(
    "fault",
    ["missing row", "row twice", "row of an ended session", "row of a forgotten partition", "other value"],
)
def test_the_proof_finds_a_row_that_differs_from_the_states(offline: Offline, fault: str) -> None:
    refreshed(offline)
    seed_fault(offline, fault)
    found = prove(offline)
    assert found.status is InvariantStatus.VIOLATED, found
    assert found.next_step == "lockstep current shelves --remake"
    assert refreshed(offline, remake=True).remade is RemakeCause.ASKED
    assert prove(offline).status is InvariantStatus.PROVEN


def test_the_status_counts_unread_batches_and_the_command_and_the_asset_refresh(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = DeclaredFollowers((offline.stream,), (), offline.folders.root)
    assert read_current_tables(declared)[0].next_run == f"makes it from the states: {RemakeCause.NEW.value}"
    made = make_current_asset(offline.stream, Settings(table_root=offline.folders.root), ["team:a"])
    (event,) = materialize([made]).asset_materializations_for_node("shelves__current")
    assert (event.metadata["dagster/row_count"].value, event.metadata["batch"].value) == (len(NAMES) + 1, 1)
    offline.run({"t": [("a", send("update", "a", 7))]}, {"t": [("a", send("update", "a", 8))]})
    (status,) = read_current_tables(declared)
    assert (status.behind, status.next_run, status.problem) == (2, "applies the newest rows", "")
    monkeypatch.setattr(commands, "find_stream_or_exit", lambda _: offline.stream)
    monkeypatch.setattr(commands, "find_folders", lambda _: offline.folders)
    shown = CliRunner().invoke(app, ["current", "shelves", "--plan", "--json"])
    assert (shown.exit_code, json.loads(shown.output)["batch"]) == (0, 1)
    done = CliRunner().invoke(app, ["current", "shelves", "--json"])
    assert (done.exit_code, json.loads(done.output)["changed"]) == (0, 1)
    (status,) = read_current_tables(declared)
    assert (status.behind, status.next_run) == (0, "has nothing to do")


def test_nothing_of_an_erased_session_is_left_in_files_or_log(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline.run({"t": [("secret", send("snapshot", "secret"))]})
    refreshed(offline)
    monkeypatch.setattr(erase, "is_writer_alive", lambda *_: False)
    request = EraseRequest(session="secret", drop_state=True)
    erase_session(offline.folders, request, EraseContext(offline.stream), who="a", why="test")
    later = time.time() + 2
    os.utime(offline.folders.current, (later, later))
    assert refreshed(offline).remade is RemakeCause.ERASED
    assert list_files(offline) == list_live(offline)
    for path in offline.folders.current.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes()
    assert len(read_prices(offline)) == len(NAMES) + 1


def test_a_commit_of_another_tool_is_replaced(offline: Offline) -> None:
    refreshed(offline)
    rows = DeltaTable(offline.folders.current).to_pyarrow_table()
    write_deltalake(offline.folders.current, rows, mode="append")
    assert refreshed(offline).remade is RemakeCause.FOREIGN
    assert len(read_prices(offline)) == len(NAMES) + 1


def test_other_code_makes_it_again(offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(offline)
    monkeypatch.setattr(refresh, "find_code_digest", lambda _: "other")
    assert refreshed(offline).remade is RemakeCause.CODE
    assert refreshed(offline).remade is None


def test_an_added_column_has_the_default_of_the_state_in_rows_that_do_not_change(offline: Offline) -> None:
    refreshed(offline)
    later = offline.of(dataclasses.replace(offline.stream, transform=LabelledShelves()))
    later.run({"t": [("a", send("update", "a", 7))]})
    done = refreshed(later)
    assert (done.remade, done.rows) == (RemakeCause.COLUMNS, len(NAMES) + 1)
    rows = DeltaTable(offline.folders.current).to_pyarrow_table().to_pylist()
    assert {row["_session"]: row["label"] for row in rows} == dict.fromkeys((*NAMES, LONG), "none") | {"a": "new"}
    assert prove(later).status is InvariantStatus.PROVEN
    assert refreshed(later).remade is None


@pytest.mark.parametrize("damage", ["gap", "torn", "garbage"])
@pytest.mark.parametrize("remake", [False, True])
def test_a_damaged_log_names_the_remedy_which_makes_all_rows_again(
    offline: Offline, damage: str, *, remake: bool
) -> None:
    for number in range(1, 4):
        offline.run({"t": [("a", send("update", "a", 100 * number))]})
        refreshed(offline)
    *_, middle, newest = sorted((offline.folders.current / "_delta_log").glob("*.json"))
    if damage == "gap":
        middle.unlink()
    else:
        newest.write_text({"torn": newest.read_text()[:40], "garbage": "{"}[damage])
    with pytest.raises(TableError, match=r"the log of .*current cannot be read: ") as refused:
        refreshed(offline, remake=remake)
    assert refused.value.next_step == (
        "try again; if the error stays, delete that folder, and lockstep current shelves makes all its rows again"
    )
    shutil.rmtree(offline.folders.current)
    assert refreshed(offline).remade is RemakeCause.NEW
    assert prove(offline).status is InvariantStatus.PROVEN


def test_files_that_were_replaced_an_hour_ago_are_deleted_and_younger_ones_are_not(offline: Offline) -> None:
    refreshed(offline)
    (first,) = list_live(offline)
    made_at = time.time() - 4_000
    os.utime(offline.folders.current / first, (made_at, made_at))
    offline.run({"t": [("a", send("update", "a", 7))]})
    refreshed(offline)
    orphan = offline.folders.current / "bucket-0-killed.parquet"
    orphan.write_bytes(b"")
    refreshed(offline)
    assert list_files(offline) == {first, orphan.name} | list_live(offline)
    old = time.time() - 4_000
    for path in offline.folders.current.rglob("*"):
        os.utime(path, (old, old))
    refreshed(offline)
    assert list_files(offline) == list_live(offline)


def test_the_loser_of_a_race_leaves_nothing_and_has_the_rows(offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    write = write_file
    races = ["one"]

    def write_behind_another(*arguments: Any, **options: Any) -> Any:
        if races:
            races.clear()
            refreshed(offline)
        return write(*arguments, **options)

    monkeypatch.setattr(refresh, "write_file", write_behind_another)
    done = refreshed(offline)
    assert (done.changed, done.version) == (0, 1)
    assert list_files(offline) == list_live(offline)
    assert len(read_prices(offline)) == len(NAMES) + 1


@pytest.mark.parametrize("is_written", [False, True])
def test_a_commit_without_an_answer_is_settled_by_the_next_refresh(
    offline: Offline,
    monkeypatch: pytest.MonkeyPatch,
    is_written: bool,  # noqa: FBT001  # a parameter
) -> None:
    append = delta_log.append_entry

    def append_without_answer(*arguments: Any, **options: Any) -> Any:
        if is_written:
            append(*arguments, **options)
        raise CommitUnknown("no answer", next_step="none")

    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "append_entry", append_without_answer)
        with pytest.raises(CommitUnknown):
            refreshed(offline)
    done = refreshed(offline)
    assert (done.changed == 0) is is_written
    assert len(read_prices(offline)) == len(NAMES) + 1


def test_a_stream_without_a_table_or_a_declaration_is_refused(offline: Offline, tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="declares no current table"):
        refreshed(offline.of(dataclasses.replace(offline.stream, current=False)))
    (tmp_path / "other" / "tables").mkdir(parents=True)
    with pytest.raises(NoTable):
        refreshed(dataclasses.replace(offline, root=tmp_path / "other"))


class SilentShelves(Shelves):
    """A fold that emits no rows at the end of a session."""

    ends_remove = False


def test_a_fold_whose_rows_do_not_replay_has_no_current_table() -> None:
    with pytest.raises(DeclarationError, match=r"Stream\.current"):
        dataclasses.replace(make_stream(), transform=SilentShelves())
