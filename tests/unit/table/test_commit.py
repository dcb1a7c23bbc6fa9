"""The commit protocol on real tables: the demands of each kind of commit on its base, and its result."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.engine.driver.startup import check_not_halted
from lockstep.errors import Fenced, TableError
from lockstep.features.compaction.commit_kinds import COMPACTION
from lockstep.integrity.resume_options import StreamHalted
from lockstep.model.finding import Finding
from lockstep.table import commit_kinds, delta_log
from lockstep.table.commit import (
    Deployed,
    HourClosed,
    Proposal,
    Writer,
    commit_batch,
    commit_claim,
    commit_closed_hour,
    commit_schema,
    keep_head,
    raise_rewind_floor,
    set_desired_state,
)
from lockstep.table.head import Desired, ViolationPolicy
from tests.support.protocol_run import HOUR, ProtocolRun, anything, entries, folders_in, stored_offsets

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

NEXT_HOUR = "2026-01-01T01"
FINDING = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path)


@pytest.fixture
def run(folders: StreamFolders) -> ProtocolRun:
    claimed = ProtocolRun(folders)
    claimed.claim()
    return claimed


def test_the_first_claim_takes_the_first_epoch_and_makes_the_stream_bounded(folders: StreamFolders) -> None:
    fresh = ProtocolRun(folders)
    before = fresh.head
    landed = fresh.output.commit(commit_claim(0, fresh.output.table_id, anything))
    assert landed.version == 1
    assert landed.head == msgspec.structs.replace(
        before, epoch=1, table_id=fresh.output.table_id, desired=Desired.BOUNDED, reason="bounded runs only"
    )
    assert stored_offsets(folders) == []


def test_a_claim_replaces_the_epoch_it_names_and_no_other(folders: StreamFolders, run: ProtocolRun) -> None:
    late = ProtocolRun(folders)
    ProtocolRun(folders).claim()
    with pytest.raises(Fenced) as refused:
        late.claim()
    assert (refused.value.mine, refused.value.holder) == (2, 2)
    assert [entry.kind for entry in entries(folders)] == ["create", "claim", "claim"]
    del run


def test_a_claim_records_a_changed_policy_from_the_next_batch_on(run: ProtocolRun) -> None:
    halts = ViolationPolicy()
    suspends = ViolationPolicy(suspends=True)
    table_id = run.output.table_id

    def claim(policy: ViolationPolicy | None) -> list[tuple[int, ViolationPolicy]]:
        proposal = commit_claim(run.output.base().head.epoch, table_id, anything, deployed=Deployed(policy=policy))
        return [(each.first_batch, each.policy) for each in run.output.commit(proposal).head.policies]

    run.batch()
    assert claim(suspends) == [(2, suspends)]
    assert claim(None) == [(2, suspends)]  # an operator's claim
    assert claim(halts) == [(2, halts)]  # no batch was under the previous policy
    ProtocolRun(run.folders).claim()
    after = ProtocolRun(run.folders)
    after.claim()
    after.batch()
    assert claim(halts) == [(2, halts)]
    assert claim(suspends) == [(2, halts), (3, suspends)]


def test_a_batch_without_its_ledger_file_is_not_proposed(run: ProtocolRun) -> None:
    batch = msgspec.structs.replace(run.prepared(), ledger=None)
    with pytest.raises(ValueError, match="has no ledger file"):
        run.commit(batch)


def test_a_claim_that_loses_to_a_batch_tries_again(folders: StreamFolders, run: ProtocolRun) -> None:
    """The epoch that it names is still in force: only the base has changed."""
    successor = ProtocolRun(folders)
    run.batch()
    assert successor.claim().epoch == 2
    assert successor.head.batch == 1


def test_of_two_racing_claims_one_wins_and_the_other_is_fenced(folders: StreamFolders) -> None:
    ProtocolRun(folders)
    for round_ in range(5):
        rivals = [ProtocolRun(folders) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            claims = [pool.submit(rival.claim) for rival in rivals]
        outcomes = [claim.exception() for claim in claims]
        assert sorted(map(type, outcomes), key=str) == sorted([type(None), Fenced], key=str)
        assert rivals[0].output.base().head.epoch == round_ + 1


def test_a_batch_makes_rows_and_head_visible_at_once(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared(rows=3)
    assert stored_offsets(folders) == []
    landed = run.commit(batch)
    assert stored_offsets(folders) == [0, 1, 2]
    head = landed.head
    assert (head.batch, head.batch_version, head.hour, head.ledger) == (1, landed.version, HOUR, batch.ledger)
    assert ProtocolRun(folders).head == head


def test_a_zombie_is_fenced_and_its_batch_stays_invisible(folders: StreamFolders, run: ProtocolRun) -> None:
    zombie = run
    batch = run.prepared()
    ProtocolRun(folders).claim()
    with pytest.raises(Fenced) as refused:
        zombie.commit(batch)
    assert (refused.value.mine, refused.value.holder) == (1, 2)
    assert stored_offsets(folders) == []


def test_a_writer_of_another_generation_is_fenced(run: ProtocolRun) -> None:
    other = Writer(epoch=run.head.epoch, generation=run.head.generation + 1)
    with pytest.raises(Fenced):
        run.output.commit(commit_batch(other, run.prepared()))


@pytest.mark.parametrize("skipped", [-1, 1])
def test_a_batch_that_does_not_follow_the_last_is_refused(run: ProtocolRun, skipped: int) -> None:
    run.batch()
    batch = run.prepared()
    batch = msgspec.structs.replace(batch, number=batch.number + skipped)
    with pytest.raises(TableError, match=f"batch {batch.number} does not follow the last committed batch 1"):
        run.commit(batch)


def test_the_newest_ledger_file_with_all_positions_is_named_until_the_next_one(run: ProtocolRun) -> None:
    """A start reads the ledger back to this file: if it were named too late, positions would be missing."""
    named = [run.batch(full=full).head.full_ledger_batch for full in (False, True, False, False, True, False)]
    assert named == [0, 2, 2, 2, 5, 5]


@pytest.mark.parametrize("closed", [HOUR, NEXT_HOUR])
def test_nothing_lands_in_a_closed_hour(folders: StreamFolders, run: ProtocolRun, closed: str) -> None:
    batch = run.prepared(hour=HOUR)
    run.output.commit(commit_closed_hour(closed))
    with pytest.raises(HourClosed, match=f"hour {HOUR} is closed"):
        run.commit(batch)
    assert stored_offsets(folders) == []


def test_hours_never_go_back(run: ProtocolRun) -> None:
    run.commit(run.prepared(hour=NEXT_HOUR))
    with pytest.raises(HourClosed):
        run.commit(run.prepared(hour=HOUR))


def test_closing_an_hour_again_or_an_older_one_changes_nothing(run: ProtocolRun) -> None:
    run.output.commit(commit_closed_hour(NEXT_HOUR))
    assert run.output.commit(commit_closed_hour(HOUR)).head.closed_hour == NEXT_HOUR


def test_a_batch_goes_on_over_a_harmless_commit(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared(hour=NEXT_HOUR)
    ProtocolRun(folders).output.commit(commit_closed_hour(HOUR))
    landed = run.commit(batch)
    assert (landed.version, landed.head.closed_hour, landed.head.batch) == (3, HOUR, 1)


def test_a_batch_with_findings_is_the_halt(folders: StreamFolders, run: ProtocolRun) -> None:
    run.commit(run.prepared(rows=4, findings=(FINDING,)))
    head = ProtocolRun(folders).head
    assert (head.desired, head.findings, head.reason) == (Desired.HALTED, (FINDING,), str(FINDING.without_session()))
    assert entries(folders)[-1].kind == commit_kinds.HALT.name
    assert stored_offsets(folders) == [0, 1, 2, 3]


def test_a_halted_stream_is_not_claimed_but_by_an_operator_and_stays_halted(
    folders: StreamFolders, run: ProtocolRun
) -> None:
    run.commit(run.prepared(findings=(FINDING,)))
    next_run = ProtocolRun(folders)
    with pytest.raises(StreamHalted) as refused:
        next_run.output.commit(commit_claim(1, next_run.output.table_id, check_not_halted))
    assert refused.value.findings == (FINDING,)
    operator = next_run.claim()
    assert (operator.epoch, operator.desired, operator.findings) == (2, Desired.HALTED, (FINDING,))


def test_what_is_wanted_of_a_stream_is_said_by_its_writer_alone(folders: StreamFolders, run: ProtocolRun) -> None:
    zombie = run.writer
    assert run.output.commit(set_desired_state(run.writer, Desired.STOPPED, "asked")).head.desired is Desired.STOPPED
    ProtocolRun(folders).claim()
    with pytest.raises(Fenced):
        run.output.commit(set_desired_state(zombie, Desired.STOPPED, "asked"))


def test_a_file_that_is_gone_is_not_named(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared()
    (folders.table / batch.files[0].path).unlink()
    with pytest.raises(TableError, match=r"is missing; nothing was committed"):
        run.commit(batch)
    assert run.output.base().head.batch == 0


def test_a_file_that_was_cut_is_not_named(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared()
    path = folders.table / batch.files[0].path
    size = batch.files[0].size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableError, match=f"has {size - 1} bytes, not {size}; nothing was committed"):
        run.commit(batch)


def test_a_file_beside_the_table_that_was_cut_is_not_referred_to(folders: StreamFolders, run: ProtocolRun) -> None:
    """Other batches may have extended a file of states, so it must have at least the bytes that the batch needs."""
    batch = run.prepared()
    state = folders.state / "states"
    folders.state.mkdir(exist_ok=True)
    state.write_bytes(b"12345")
    with pytest.raises(TableError, match="states has 5 bytes, fewer than 6; nothing was committed"):
        run.commit(msgspec.structs.replace(batch, needs={state: 6}))
    assert run.commit(msgspec.structs.replace(batch, needs={state: 4})).head.batch == 1


def test_a_file_beside_the_table_that_is_gone_is_not_referred_to(folders: StreamFolders, run: ProtocolRun) -> None:
    """A clean-up can delete it while a driver sleeps between its tasks and its commit."""
    batch = run.prepared()
    state = folders.state / "states"
    folders.state.mkdir(exist_ok=True)
    there = folders.state / "other states"
    there.write_bytes(b"12345")
    with pytest.raises(TableError, match="states is missing; nothing was committed"):
        run.commit(msgspec.structs.replace(batch, needs={there: 5, state: 1}))
    assert run.output.base().head.batch == 0
    assert stored_offsets(folders) == []


def test_a_fenced_writer_changes_no_columns(folders: StreamFolders, run: ProtocolRun) -> None:
    ProtocolRun(folders).claim()
    altered = list[object]()
    with pytest.raises(Fenced):
        run.output.commit(commit_schema(run.writer, lambda *_: altered.append(1)))
    assert not altered


def test_a_file_that_a_vacuum_may_take_is_not_named(folders: StreamFolders, run: ProtocolRun) -> None:
    batch = run.prepared()
    two_days_ago = time.time() - 48 * 3600
    os.utime(folders.table / batch.files[0].path, (two_days_ago, two_days_ago))
    with pytest.raises(TableError, match="is older than half the retention"):
        run.commit(batch)


def test_every_commit_repeats_the_head_and_has_a_token_of_its_own(folders: StreamFolders, run: ProtocolRun) -> None:
    run.batch()
    run.output.commit(commit_closed_hour("2025-12-31T23"))
    found = entries(folders)
    assert [entry.kind for entry in found] == ["create", "claim", "batch", "close"]
    assert [entry.head.batch for entry in found if entry.head] == [0, 0, 1, 1]
    assert len({entry.token for entry in found[1:]}) == len(found) - 1


def test_a_commit_that_only_checks_leaves_the_head_as_it_is(run: ProtocolRun) -> None:
    before = run.output.base().head
    proposal = Proposal(kind=COMPACTION, next_head=keep_head(anything))
    assert run.output.commit(proposal).head == before


def test_the_floor_of_rewinding_never_sinks_and_is_that_of_its_generation(run: ProtocolRun) -> None:
    """Of two concurrent clean-ups, the clean-up with the older floor may commit last."""
    generation = run.head.generation
    floors = [run.output.commit(raise_rewind_floor(generation, batch)).head.rewind_floor for batch in (3, 2, 4)]
    assert floors == [3, 3, 4]
    with pytest.raises(TableError, match=f"generation {generation + 1} has become {generation}"):
        run.output.commit(raise_rewind_floor(generation + 1, 9))


def test_a_log_checkpoint_hides_nothing(folders: StreamFolders, run: ProtocolRun) -> None:
    from lockstep.table.checkpoint import write_checkpoint

    run.batch()
    write_checkpoint(folders.table)
    assert ProtocolRun(folders).head == run.head
    assert delta_log.has_log(folders.table)
    assert run.batch().head.batch == 2
