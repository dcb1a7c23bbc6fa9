"""Others may describe a table while a stream writes it, without a stop or a loss; other changes are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.quality.increment import CheckState, Increment, find_matching_versions, plan_increment
from lockstep.operations.inspect.history import read_history
from lockstep.operations.repair import repair_stream
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.foreign_commits import ForeignCommit
from tests.support.delta_protocol import find_broken_rules
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def set_owner(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"owner": "anna"}, raise_if_not_exists=False)


def set_comment(table: Path) -> None:
    DeltaTable(table).alter.set_table_description("rows of the readings")


def set_name(table: Path) -> None:
    DeltaTable(table).alter.set_table_name("readings")


def tag_column(table: Path) -> None:
    name = next(field.name for field in DeltaTable(table).schema().fields)
    DeltaTable(table).alter.set_column_metadata(name, {"comment": "see the wiki", "tag": "personal"})


def append_only(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})


def shorten_log(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})


def mark_column(table: Path) -> None:
    name = next(field.name for field in DeltaTable(table).schema().fields)
    DeltaTable(table).alter.set_column_metadata(name, {"lockstep.absent_up_to_batch": "7"})


ALLOWED: dict[str, Callable[[Path], None]] = {
    "a property": set_owner,
    "a comment": set_comment,
    "a name": set_name,
    "a tag of a column": tag_column,
}
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "append only": (append_only, r"\(delta\.appendOnly = true\)"),
    "a shorter log": (shorten_log, r"\(delta\.logRetentionDuration = interval 1 days\)"),
    "a mark of ours": (mark_column, "UPDATE FIELD METADATA"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProtocolRun:
    run = ProtocolRun(folders_in(tmp_path_factory.mktemp("original")))
    run.claim()
    run.batch(full=True)
    run.batch()
    return run


@pytest.fixture
def run(original: ProtocolRun, tmp_path: Path) -> ProtocolRun:
    return original.copied(tmp_path / "copy")


def describe(table: Path) -> tuple[str | None, str | None, dict[str, str]]:
    found = DeltaTable(table).metadata()
    return found.name, found.description, found.configuration


@pytest.mark.parametrize("what", ALLOWED)
def test_a_description_stops_nobody_and_stays(run: ProtocolRun, what: str) -> None:
    for table in (run.folders.table, run.folders.ledger):
        ALLOWED[what](table)
    described = describe(run.folders.table)
    schema = DeltaTable(run.folders.table).schema()
    assert repair_stream(run.folders, apply=False).whole
    assert find_matching_versions(run.folders).batch == 2
    run.batch()
    again = ProtocolRun(run.folders)
    again.claim()
    again.batch()
    again.rewind(2)
    again.claim()
    again.batch()
    assert stored_offsets(run.folders) == [0, 1, 2, 3, 4, 5]
    assert (describe(run.folders.table), DeltaTable(run.folders.table).schema()) == (described, schema)
    assert [problem for table in (run.folders.table, run.folders.ledger) for problem in find_broken_rules(table)] == []


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("side", ["table", "ledger"])
def test_any_other_change_is_refused_by_name(run: ProtocolRun, side: str, what: str) -> None:
    change, named = REFUSED[what]
    change(run.folders.root / run.folders.stream / side)
    with pytest.raises(ForeignCommit, match=named):
        run.batch()


def test_a_description_after_a_foreign_commit_is_set_aside_with_it(run: ProtocolRun) -> None:
    set_comment(run.folders.table)
    append_only(run.folders.table)
    set_owner(run.folders.table)
    with pytest.raises(ForeignCommit, match="version 5 is"):
        run.batch()
    repair_stream(run.folders, apply=True)
    assert describe(run.folders.table)[1] == "rows of the readings"
    assert "owner" not in describe(run.folders.table)[2]
    again = ProtocolRun(run.folders)
    again.claim()
    again.batch()


def test_a_batch_is_found_whatever_descriptions_are_between_batches(run: ProtocolRun) -> None:
    for _ in range(4):
        set_owner(run.folders.table)
        set_comment(run.folders.table)
        run.batch()
    for batch in range(1, 7):
        found = delta_log.find_head_of_batch(run.folders.table, batch)
        assert found is not None
        assert found.batch == batch
    compact_ledger(run.folders, run.head)
    assert [each.event for each in read_history(run.folders, last=3).events][-2:] == ["foreign commit", "batches"]


def test_a_catalogue_that_describes_a_table_for_ever_costs_a_read_of_each_entry(
    run: ProtocolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        set_owner(run.folders.table)
    opened = list[object]()
    open_delta_table = delta_log.open_delta_table

    def count(folder: Path, *, version: int | None = None) -> DeltaTable:
        opened.append(version)
        return open_delta_table(folder, version=version)

    monkeypatch.setattr(delta_log, "open_delta_table", count)
    assert run.output.base().version == 3 + 30
    assert len(opened) <= 3


def test_a_check_reads_on_past_a_description(run: ProtocolRun) -> None:
    before = find_matching_versions(run.folders)
    set_comment(run.folders.table)
    run.batch()
    planned = plan_increment(run.folders, CheckState(before, (), (), (), ()), find_matching_versions(run.folders), ())
    assert isinstance(planned, Increment)
    assert [file.rows for file in planned.files] == [2]


def test_a_description_is_built_on_after_a_log_checkpoint(run: ProtocolRun) -> None:
    set_comment(run.folders.table)
    write_checkpoint(run.folders.table)
    run.batch()
    assert describe(run.folders.table)[1] == "rows of the readings"


NAMES = st.sampled_from(["delta.appendOnly", "DELTA.x", "delta.", "owner", "deltas", "lockstep.x", "__x", "a.delta.b"])


@settings(max_examples=60, deadline=None)
@given(held=st.dictionaries(NAMES, st.sampled_from("ab")), after=st.dictionaries(NAMES, st.sampled_from("ab")))
def test_properties_with_a_meaning_are_told_from_others(held: dict[str, str], after: dict[str, str]) -> None:
    from lockstep.table.descriptions import find_reserved_changes
    from tests.support.delta_protocol import make_metadata_line

    changed = {name for name in held.keys() | after.keys() if held.get(name) != after.get(name)}
    reserved = {name for name in changed if name.lower().startswith("delta.") or name.startswith(("lockstep.", "__"))}
    found = find_reserved_changes(make_metadata_line(after), make_metadata_line(held))
    assert bool(found) is bool(reserved)
    assert all(name in found for name in sorted(reserved)[:5])
