"""A stream is rewound to an earlier batch on a real broker: removed rows, repeated reads, refusals, kills."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep import Ordered, Suspend
from lockstep.control.heartbeat import Heartbeat
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import LockstepError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.history import rewind
from lockstep.features.history.rewind import RewindReason, prepare_rewind, rewind_stream
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.retention import housekeeping
from lockstep.features.retention import unreachable_state as state_gc
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicNamePartition
from lockstep.operations.inspect.history import read_history
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.operations.quarantine import QuarantineFilter, list_quarantine
from lockstep.operations.query import AsOf, query_sql
from lockstep.operations.retire import retire_topic
from lockstep.storage import find_storage
from lockstep.table.commit import OutputLog, raise_rewind_floor
from lockstep.table.ledger import read_ledger
from lockstep.table.positions import GROWN
from lockstep.verify.verify import verify_stream
from tests.features.history.killed_rewind import MOMENTS
from tests.integration.cli.conftest import platform_in
from tests.support.adding_stream import Adding, adding
from tests.support.feed import folded, session, snapshot, update
from tests.support.local_runs import read_grown_topic, read_in_batches
from tests.support.plain_reader import named_files
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep import Record
    from lockstep.features.history.rewind import Rewound
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.head import Head
    from tests.support.adding_stream import Panel, Reading, Snapshot, Update
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

ROOT = Path(__file__).parents[3]


class Wrong(Adding):
    """The same fold with a fault: from a sequence on, its rows are off by one."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Emit the wrong rows."""
        for row in super().on_update(state, message, record):
            row.value += 1 if message.seq >= 5 else 0
            yield row


def back(runs: LocalRuns, to: str | int, *, accept_expired: bool = False) -> Rewound:
    return rewind_stream(runs.handle, str(to), who="ann", why="wrong rows", accept_expired=accept_expired)


def head_of(runs: LocalRuns) -> Head:
    return OutputLog(runs.folders.table).base().head


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def published(runs: LocalRuns, topic: str) -> int:
    return ConsumerGroup(runs.settings.kafka, runs.stream.name).published([TopicNamePartition(topic, 0)])[
        TopicNamePartition(topic, 0)
    ]


@pytest.fixture
def topic(feed: Feed, runs: LocalRuns) -> str:
    """A topic of six messages, read in batches 1 to 3."""
    made = feed.create("values")
    read_in_batches(feed, runs, made, session(5))
    return made


def test_a_fault_that_was_seen_on_friday_is_corrected_from_the_first_wrong_row_on(
    broker: Broker, tmp_path: Path
) -> None:
    made = platform_in(tmp_path, broker)
    topic = made.feed.create("values")
    values = session(7)
    wrong = made.runs.of(adding(made.feed.pattern, transform=Wrong()))
    read_in_batches(made.feed, wrong, topic, values)
    assert made.call("verify", "adding").exit_code == 3
    assert made.call("stop", "adding", "--why", "wrong").exit_code == 0
    why = ("--why", "off by one")
    planned = made.call("rewind", "adding", "--to", f"{topic}/0@4", *why, "--plan")
    assert planned.exit_code == 0, planned.output
    for fact in ("back to batch +2", "batches that go +2", "rows that go +8", "offsets to read again +4"):
        assert re.search(fact, planned.stdout), fact
    done = made.call("rewind", "adding", "--to", f"{topic}/0@4", *why, "--yes")
    assert done.exit_code == 0, done.output
    assert "adding: rewound and stopped" in done.stdout
    for fact in ("back at batch +2", "by batch +5", "generation +2", "rows that went +8"):
        assert re.search(fact, done.stdout), fact
    assert published(made.runs, topic) == 4
    made.runs.run()
    assert made.runs.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(values)])
    proof = made.call("verify", "adding")
    assert proof.exit_code == 0, proof.output
    (event,) = (each for each in read_history(made.runs.folders, 50).events if each.event == "rewound")
    assert event.detail.startswith("to batch 2, undoing up to batch 4: off by one (")


def test_a_plan_changes_nothing_and_json_has_its_parts(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    topic = made.feed.create("values")
    read_in_batches(made.feed, made.runs, topic, session(5))
    before = head_of(made.runs)
    said = made.call("rewind", "adding", "--to", "1", "--why", "x", "--plan", "--json")
    found = msgspec.json.decode(said.stdout)
    assert (found["to_batch"], found["batches"], found["read_again"], found["obstacles"]) == (1, 2, 4, [])
    assert found["partitions"][0]["log_start"] == 0
    assert head_of(made.runs) == before


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("9", "the last batch is 3"),
        ("3", "batch 3 is the last batch"),
        ("monday", "no savepoint 'monday'"),
        ("2026-99-01", "names no batch"),
        ("1999-01-01", "does not go back to"),
        ("other/0@1", "has not been read"),
        ("nothing@", "is not a message"),
    ],
)
def test_a_target_that_is_none_is_refused_by_name(read_only: LocalRuns, to: str, problem: str) -> None:
    with pytest.raises(LockstepError, match=problem):
        back(read_only, to)


@pytest.fixture(scope="module")
def read_only(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> LocalRuns:
    """A stream of three batches for tests that only read."""
    made = tmp_path_factory.mktemp("read-only")
    platform = platform_in(made, broker)
    read_in_batches(platform.feed, platform.runs, platform.feed.create("values"), session(5))
    return platform.runs


def test_a_time_means_the_last_batch_by_then(read_only: LocalRuns) -> None:
    at = prepare_rewind(read_only.handle, "2").plan.to_at
    assert at is not None
    assert prepare_rewind(read_only.handle, at.isoformat()).plan.to_batch == 2
    assert prepare_rewind(read_only.handle, (at - timedelta(milliseconds=1)).isoformat()).plan.to_batch == 1


@pytest.mark.usefixtures("topic")
def test_a_living_writer_refuses_it(runs: LocalRuns) -> None:
    head = head_of(runs)
    with Heartbeat(runs.folders.control, head.epoch), pytest.raises(Refused, match="is writing") as refused:
        back(runs, 1)
    assert "lockstep stop adding" in refused.value.next_step
    assert head_of(runs) == head


def test_messages_that_expired_since_refuse_it_unless_their_loss_is_accepted(
    topic: str, feed: Feed, runs: LocalRuns
) -> None:
    feed.expire(topic, 3)
    with pytest.raises(
        Refused, match=rf"neither Kafka nor the archive has 1 of the offsets .* most of {topic}/0: 1 from 2 on"
    ):
        back(runs, 1)
    back(runs, 1, accept_expired=True)
    with pytest.raises(IntegrityLost):
        runs.run()
    (finding,) = head_of(runs).findings
    assert (finding.offset, finding.until) == (2, 3)


def read_forgotten_topic(feed: Feed, runs: LocalRuns) -> str:
    """Return a topic that was read in two batches, retired, deleted and forgotten."""
    topic = feed.create("gone")
    read_in_batches(feed, runs, topic, session(3))
    retire_topic(runs.handle, topic, who="ann", why="no longer sent")
    feed.delete(topic)
    for _ in range(2):
        runs.run()
    assert topic not in {row.topic for row in runs.handle.positions.values()}
    return topic


def test_messages_of_a_topic_that_is_forgotten_refuse_it_as_well(feed: Feed, runs: LocalRuns) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered())).tuned(forget_seconds=0.0)
    gone = read_forgotten_topic(feed, ordered)
    for to, lost in (("0", 4), ("1", 2)):
        plan = prepare_rewind(ordered.handle, to).plan
        assert [each.kind for each in plan.obstacles] == [RewindReason.EXPIRED]
        assert [(each.topic, each.position, each.expired) for each in plan.partitions] == [(gone, 4, lost)]
    before = ordered.rows(gone)
    back(ordered, 2)
    assert ordered.rows(gone) == before
    assert ordered.run() is RunOutcome.ENDED
    assert not verify_stream(ordered.stream, ordered.folders, ordered.settings.kafka).violations


def test_a_topic_that_is_forgotten_since_stays_retired(feed: Feed, runs: LocalRuns) -> None:
    """If it were not retired, a strict stream would halt for its deletion."""
    runs = runs.tuned(forget_seconds=0.0)
    gone = read_forgotten_topic(feed, runs)
    back(runs, 2)
    assert [(row.topic, row.retired) for row in runs.handle.positions.values()] == [(gone, True)]
    assert runs.run() is RunOutcome.ENDED


@pytest.mark.usefixtures("topic")
def test_a_topic_without_a_message_that_came_and_was_retired_since_stays_retired(feed: Feed, runs: LocalRuns) -> None:
    """Its deletion loses nothing: a strict stream continues."""
    empty = feed.create("empty")
    runs.run()
    retire_topic(runs.handle, empty, who="ann", why="never used")
    feed.delete(empty)
    runs.run()
    back(runs, 3)
    assert runs.run() is RunOutcome.ENDED
    assert {row.topic for row in runs.handle.positions.values() if row.retired} == {empty}
    assert_proven(runs)


def test_a_halt_after_the_target_is_undone_and_found_again(topic: str, feed: Feed, runs: LocalRuns) -> None:
    feed.send(topic, [update(9, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    assert head_of(runs).desired.value == "halted"
    back(runs, 2)
    assert (head_of(runs).desired.value, head_of(runs).findings) == ("stopped", ())
    with pytest.raises(IntegrityLost):
        runs.run()
    assert head_of(runs).findings[0].offset == 6


@pytest.mark.usefixtures("topic")
def test_a_topic_that_was_taken_up_since_keeps_its_first_position(feed: Feed, runs: LocalRuns) -> None:
    later = feed.create("later")
    feed.send(later, session(3))
    runs.run()
    feed.expire(later, 2)
    plan = prepare_rewind(runs.handle, "3").plan
    assert plan.topics == (later,)
    assert [each.kind for each in plan.obstacles] == [RewindReason.EXPIRED]
    back(runs, 3, accept_expired=True)
    with pytest.raises(IntegrityLost):
        runs.run()
    assert [(each.topic, each.offset, each.until) for each in head_of(runs).findings] == [(later, 0, 2)]


def test_everything_can_be_read_again_from_before_the_first_batch(topic: str, runs: LocalRuns) -> None:
    done = back(runs, 0)
    assert (done.plan.batches, done.plan.rows, done.plan.read_again) == (3, 10, 6)
    (mark,) = named_files(runs.folders.table)
    assert mark.startswith(f"commit_hour={head_of(runs).hour}/mark-")  # a mark has no rows
    assert DeltaTable(runs.folders.table).to_pyarrow_table().num_rows == 0
    runs.run()
    assert len(runs.rows(topic)) == 10
    assert_proven(runs)


def test_growth_that_was_accepted_since_is_judged_again(feed: Feed, runs: LocalRuns) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered()))
    topic = feed.create("values")
    read_in_batches(feed, ordered, topic, session(5))
    feed.grow(topic, 2)
    ordered.run()
    back(ordered, 3)
    assert {row.partition for row in runs.handle.positions.values()} == {0}
    ordered.run()
    assert {row.lifecycle for row in runs.handle.positions.values() if row.partition == 1} == {GROWN}
    assert_proven(ordered)


def test_a_partition_that_a_topic_got_since_and_whose_messages_expired_refuses_the_rewind(
    feed: Feed, runs: LocalRuns
) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered()))
    topic = read_grown_topic(feed, ordered)
    feed.expire(topic, 2, 1)
    plan = prepare_rewind(ordered.handle, "3").plan
    assert [each.kind for each in plan.obstacles] == [RewindReason.EXPIRED]
    assert [(each.back_to, each.read_again, each.expired) for each in plan.partitions if each.partition == 1] == [
        (0, 4, 2)
    ]


def test_a_loss_that_was_accepted_of_a_partition_that_a_topic_got_since_is_in_the_ledger(
    feed: Feed, runs: LocalRuns
) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered()))
    topic = read_grown_topic(feed, ordered)
    feed.expire(topic, 2, 1)
    back(ordered, 3, accept_expired=True)
    ordered.run()
    held = read_ledger(runs.folders.ledger)
    counted = [row for row in held if row.generation == 2 and row.partition == 1]
    assert [(hole.start, hole.until, hole.cause) for row in counted for hole in row.holes] == [(0, 2, "expired")]
    assert counted[0].lifecycle == GROWN
    assert_proven(ordered)


def test_quarantine_and_sql_show_what_counts_and_everything_is_proven(feed: Feed, runs: LocalRuns) -> None:
    bears = runs.of(adding(feed.pattern, Ordered(on_violation=Suspend())))
    topic = feed.create("values")
    feed.send(topic, session(2))
    bears.run()
    feed.send(topic, [b"garbage", update(4, a=1)])
    bears.run()
    assert list_quarantine(bears.folders, QuarantineFilter()).messages == 2
    back(bears, 1)
    assert list_quarantine(bears.folders, QuarantineFilter()).messages == 0
    counted = query_sql("SELECT count(*) FROM adding_quarantine", ["adding"], bears.folders.root, AsOf(), limit=None)
    assert counted.rows == [[0]]
    feed.send(topic, [snapshot(7, a=1, b=1), update(8, a=1)])
    bears.run()
    assert list_quarantine(bears.folders, QuarantineFilter()).messages == 2
    assert_proven(bears)


def test_compacted_hours_come_back_as_they_were_and_can_be_compacted_again(topic: str, runs: LocalRuns) -> None:
    close_hour(runs.folders)
    compact_stream(runs.folders)
    closed = head_of(runs).closed_hour
    back(runs, 2)
    assert len(runs.rows(topic)) == 6
    assert head_of(runs).closed_hour == closed
    assert head_of(runs).hour > closed
    assert compact_stream(runs.folders).files_before == 2
    runs.run()
    assert_proven(runs)


@pytest.mark.usefixtures("topic")
def test_a_clean_up_that_has_looked_before_a_rewind_deletes_nothing_that_the_rewind_names(runs: LocalRuns) -> None:
    close_hour(runs.folders)
    compact_stream(runs.folders)
    OutputLog(runs.folders.table).commit(raise_rewind_floor(1, 2))
    head = head_of(runs)
    folders = runs.folders
    found = [*housekeeping.find_replaced_data_files(folders, head), *state_gc.find_unreachable_state(folders, head)]
    back(runs, 2)
    for path in found:
        find_storage(path).delete(path)
    runs.run()
    assert_proven(runs)


@pytest.mark.usefixtures("topic")
def test_a_clean_up_that_raised_the_floor_first_refuses_the_rewind(runs: LocalRuns) -> None:
    prepared = rewind.plan_rewind(runs.handle, "2")
    OutputLog(runs.folders.table).commit(raise_rewind_floor(1, 3))
    with pytest.raises(NotRewindable, match="the rewind floor is batch 3"):
        rewind.commit_prepared_rewind(runs.folders, prepared, "too late")
    runs.run()
    assert_proven(runs)


@pytest.mark.usefixtures("topic")
def test_files_that_are_gone_refuse_it_by_name(runs: LocalRuns) -> None:
    make_savepoint(runs.folders, "before", who="ann", why="a test", at="2")
    data = next(iter(rewind.plan_rewind(runs.handle, "before").needs))
    data.unlink()
    with pytest.raises(Refused, match=data.name):
        back(runs, "before")


def test_a_rewind_beside_batches_of_a_run_that_starts_wins_or_is_refused(
    topic: str, feed: Feed, runs: LocalRuns
) -> None:
    prepared = rewind.plan_rewind(runs.handle, "1")
    feed.send(topic, [update(7, a=1)])
    runs.run()
    with pytest.raises(LockstepError):
        rewind.commit_prepared_rewind(runs.folders, prepared, "too late")
    assert_proven(runs)


@pytest.mark.parametrize("moment", first_usual(2, MOMENTS))
def test_no_kill_of_a_rewind_leaves_anything_that_the_next_run_does_not_heal(
    topic: str, feed: Feed, runs: LocalRuns, moment: str
) -> None:
    before = head_of(runs)
    command = [sys.executable, "-m", "tests.features.history.killed_rewind"]
    arguments = [runs.bootstrap_servers, str(runs.root), feed.pattern, "1", moment]
    killed = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # our own
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    landed = head_of(runs)
    assert landed.is_rewound is (moment != "before the commit")
    assert landed.batch == before.batch + landed.is_rewound
    assert len(runs.rows(topic)) == (2 if landed.is_rewound else 10)
    runs.run()
    assert len(runs.rows(topic)) == 10
    assert published(runs, topic) == 6
    assert_proven(runs)


@pytest.mark.usefixtures("topic")
def test_a_table_as_of_a_savepoint_stays_readable(runs: LocalRuns) -> None:
    (made,) = make_savepoint(runs.folders, "before", who="ann", why="a test", at="1").savepoints
    back(runs, 2)
    assert DeltaTable(runs.folders.table, version=made.version).to_pyarrow_table().num_rows == 2
