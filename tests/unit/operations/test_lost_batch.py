"""The newest entry of the table is empty or cut: one cause everywhere, and a repair without a copy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import TableError
from lockstep.operations.repair import Repair, repair_stream
from lockstep.operations.stream_table import try_read_head
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OutputLog
from tests.support.delta_protocol import find_broken_rules
from tests.support.every_commit import EveryCommit
from tests.support.examples import scale_examples
from tests.support.protocol_run import ProtocolRun, stored_offsets

BEFORE = ("batch", "quarantined", "hour", "batch", "hour")
STEPS = ("batch", "quiet", "quarantined", "compact", "retain", "rewind", "promote", "erase", "close", "desire")


def damage(made: EveryCommit, share: float) -> Path:
    """Keep a share of the newest entry."""
    entry = delta_log.make_entry_path(made.run.folders.table, made.run.output.base().version)
    content = entry.read_bytes()
    entry.write_bytes(content[: int(len(content) * share)])
    return entry


def problems(found: Repair) -> list[str]:
    return [each.found for each in found.checks if each.condition not in {"ok", "repaired"}]


@settings(max_examples=scale_examples(50, usual=6), deadline=None)
@given(
    step=st.sampled_from(STEPS),
    share=st.sampled_from([0.0, 0.0, 0.5, 0.99]),
    checkpoint=st.sampled_from(["none", "before", "of it"]),
)
def test_an_emptied_entry_has_one_cause_and_a_way_out(step: str, share: float, checkpoint: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = EveryCommit(Path(root))
        for name in BEFORE:
            made.step(name)
        folders = made.run.folders
        before = made.run.output.base()
        if checkpoint == "before":
            write_checkpoint(folders.table)
        made.step(step)
        version = made.run.output.base().version
        if version == before.version:
            return
        if checkpoint == "of it":
            write_checkpoint(folders.table)
        left = delta_log.read_head(folders.table, version - 1)
        rows = sorted(stored_offsets_at(made, version - 1))
        cause = f"{damage(made, share)} is empty or cut"

        with pytest.raises(TableError) as refused:
            OutputLog(folders.table).base()
        with pytest.raises(TableError) as shown:
            try_read_head(folders)
        assert (refused.value.problem, shown.value.problem) == (cause, cause)
        assert refused.value.next_step == f"lockstep repair {folders.stream}"
        assert problems(repair_stream(folders, apply=False)) == [cause]

        assert repair_stream(folders, apply=True).whole
        assert try_read_head(folders) == left
        assert stored_offsets(folders) == rows
        again = ProtocolRun(folders)
        again.claim()
        again.batch()
        assert repair_stream(folders, apply=False).whole
        assert find_broken_rules(folders.table) == []


def stored_offsets_at(made: EveryCommit, version: int) -> list[int]:
    handle = delta_log.open_delta_table(made.run.folders.table, version=version)
    return [int(offset) for offset in handle.to_pyarrow_table()["_offset"].to_numpy()]


def test_a_batch_that_the_ledger_holds_is_taken_back_and_read_again(tmp_path: Path) -> None:
    made = EveryCommit(tmp_path)
    for step in ("batch", "quarantined", "quarantined"):
        made.step(step)
    rows = stored_offsets(made.run.folders)
    batch = made.run.head.batch
    damage(made, 0)
    (found,) = (each for each in repair_stream(made.run.folders, apply=False).checks if each.condition != "ok")
    assert "messages after batch 2 are read again from Kafka" in found.next_step
    repaired = {each.check: each.found for each in repair_stream(made.run.folders, apply=True).checks}
    assert repaired["ledger"].endswith("taken back to batch 2")
    again = ProtocolRun(made.run.folders)
    again.claim()
    again.batch()
    assert (stored_offsets(made.run.folders), again.head.batch) == (rows, batch)
    quarantined = delta_log.open_delta_table(made.run.folders.quarantine).to_pyarrow_table()["batch"].to_pylist()
    assert quarantined == [2]


def test_an_operation_that_is_lost_is_named(tmp_path: Path) -> None:
    """An undone rewind must be repeated by a person; the next run repeats a lost batch."""
    made = EveryCommit(tmp_path)
    made.batch()
    made.batch()
    made.run.rewind(1)
    damage(made, 0)
    (found,) = (each for each in repair_stream(made.run.folders, apply=False).checks if each.condition != "ok")
    assert found.next_step.endswith("read again from Kafka; repeat this operation: that of epoch 2")


def test_what_is_not_there_any_more_needs_a_copy(tmp_path: Path) -> None:
    made = EveryCommit(tmp_path)
    for step in ("batch", "batch", "batch"):
        made.step(step)
    delta_log.make_entry_path(made.run.folders.table, 2).unlink()
    write = damage(made, 0)
    (found,) = (each for each in repair_stream(made.run.folders, apply=True).checks if each.condition != "ok")
    assert (found.condition, f"restore {write} from a copy" in found.next_step) == ("broken", True)
