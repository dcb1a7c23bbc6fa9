"""Every kind of commit keeps the rules of Delta's protocol, on the table and on the side tables, in any order."""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.compaction.commit_kinds import COMPACTION, SIDE_COMPACTION
from lockstep.features.erase.commit_kinds import ERASE, SIDE_REDACTION
from lockstep.features.history.commit_kinds import PROMOTE, REWIND
from lockstep.features.retention.commit_kinds import RETENTION, SIDE_RETENTION
from lockstep.features.retention.rows import drop_old_rows
from lockstep.table import commit_kinds, delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit_kinds import RowChange, find_commit_kind, list_commit_kinds
from tests.support.delta_protocol import find_broken_rules
from tests.support.every_commit import EveryCommit
from tests.support.examples import scale_examples

STEPS = st.sampled_from(
    (
        *("batch", "batch", "quiet", "quarantined", "hour", "compact", "retain", "rewind", "rewind far", "promote"),
        *("erase", "close", "floor", "savepoint", "schema", "desire", "drop messages"),
    )
)


def read_actions(table: Path, version: int) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the kind of an entry, and its actions."""
    entry = delta_log.read_entry(table, version)
    assert entry is not None
    lines = delta_log.make_entry_path(table, version).read_text().splitlines()
    return entry.kind, [json.loads(line) for line in lines]


def check_kinds(table: Path) -> None:
    """Check that each commit changes rows as its kind states to readers."""
    for version in delta_log.list_versions(table):
        name, actions = read_actions(table, version)
        kind = find_commit_kind(name) or commit_kinds.CREATE
        files = [each.get("add") or each["remove"] for each in actions if each.keys() & {"add", "remove"}]
        assert {each["dataChange"] for each in files} <= {kind.changes_data}, (version, kind)
        ended = {each["txn"]["appId"] for each in actions if "txn" in each}
        assert kind.transactions <= ended, (version, kind)
        adds, removes = (any(name in each for each in actions) for name in ("add", "remove"))
        if removes and kind.row_change is RowChange.REPLACED:
            assert adds, f"version {version}, {kind}: it looks like retention"
        if removes and kind.row_change is RowChange.DROPPED:
            assert not adds, (version, kind)


def check(made: EveryCommit) -> None:
    for table in made.tables:
        assert find_broken_rules(table) == [], table.name
        check_kinds(table)
        DeltaTable(table).to_pyarrow_table()


@settings(max_examples=scale_examples(60, usual=8), deadline=None)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_commits_of_all_kinds_in_any_order_keep_the_rules(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = EveryCommit(Path(root))
        for step in steps:
            made.step(step)
        check(made)


def test_each_kind_of_commit_with_files_is_made_and_keeps_the_rules(tmp_path: Path) -> None:
    """These steps make all kinds of commits, so that no kind is left out by chance."""
    made = EveryCommit(tmp_path)
    steps = ["batch", "quarantined", "quarantined", "batch", "savepoint", "batch", "hour", "hour", "compact", "rewind"]
    steps += [
        "promote",
        "schema",
        "batch",
        "desire",
        "erase",
        "batch",
        "floor",
        "hour",
        "close",
        "hour",
        "retain",
        "drop messages",
    ]
    for step in steps:
        made.step(step)
    check(made)
    kinds = {read_actions(table, at)[0] for table in made.tables for at in delta_log.list_versions(table)}
    with_files = {commit_kinds.BATCH, COMPACTION, RETENTION, REWIND, PROMOTE}
    with_files |= {ERASE, commit_kinds.SIDE, SIDE_COMPACTION, SIDE_REDACTION, SIDE_RETENTION}
    assert {each.name for each in with_files} <= kinds


def test_no_two_kinds_of_commit_have_one_name() -> None:
    names = [kind.name for kind in list_commit_kinds()]
    assert len(set(names)) == len(names)


def test_the_rules_are_checked_from_a_log_checkpoint_on(tmp_path: Path) -> None:
    """Housekeeping shortens a log in this way; a broken rule after the checkpoint is found."""
    made = EveryCommit(tmp_path)
    for step in ("batch", "hour", "hour"):
        made.step(step)
    table = made.run.folders.table
    version = made.run.output.base().version
    write_checkpoint(table)
    made.step("compact")
    made.step("rewind")
    for at in range(version + 1):
        delta_log.make_entry_path(table, at).unlink()
    assert find_broken_rules(table) == []
    entry = delta_log.make_entry_path(table, version + 1)
    entry.write_bytes(entry.read_bytes().replace(b'"path":"commit_hour', b'"path":"other/commit_hour', 1))
    assert find_broken_rules(table)


def test_no_table_is_append_only(tmp_path: Path) -> None:
    """Retention, erasure, rewind and promotion remove data, which the property forbids to every writer."""
    for table in EveryCommit(tmp_path).tables:
        assert "delta.appendOnly" not in DeltaTable(table).metadata().configuration


def test_a_rewind_over_a_retention_is_no_append(tmp_path: Path) -> None:
    """Its files return and none is removed: a reader that has read their rows would read them again."""
    made = EveryCommit(tmp_path)
    for step in ("batch", "hour", "hour"):
        made.step(step)
    made.run.clock += timedelta(hours=5)
    made.quiet()
    before = made.run.head.batch
    drop_old_rows(made.run.folders, timedelta(hours=2), cause="a test")
    assert delta_log.read_live_files(made.run.folders.table, made.run.output.base().version) == {}
    made.quiet()
    made.run.rewind(before)
    assert len(DeltaTable(made.run.folders.table).to_pyarrow_table()) == 6
    check(made)
    _, actions = read_actions(made.run.folders.table, made.run.output.base().version)
    assert {"add", "remove"} <= {name for each in actions for name in each}


def test_a_rewind_to_no_rows_is_no_deletion(tmp_path: Path) -> None:
    """A removal alone resembles retention, and a reader with `ignoreDeletes` ignores it silently."""
    made = EveryCommit(tmp_path)
    made.quiet()
    made.batch()
    made.run.rewind(1)
    assert len(DeltaTable(made.run.folders.table).to_pyarrow_table()) == 0
    check(made)
    made.run.claim()
    made.batch()
    made.run.rewind(made.run.head.batch - 1)  # which has a mark
    assert len(delta_log.read_live_files(made.run.folders.table, made.run.output.base().version)) == 2
    made.run.claim()
    for step in ("hour", "hour", "compact"):
        made.step(step)
    check(made)
