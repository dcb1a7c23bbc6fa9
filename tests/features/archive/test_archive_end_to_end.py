"""Messages that Kafka has deleted are read from the archive; a real broker whose log is deleted."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import Earliest, FirstSnapshot, Latest, Ordered, Topics
from lockstep.declare.archive import Archive
from lockstep.engine.driver.loop import RunOutcome
from lockstep.features.archive.metrics import BYTES, FILES, read_archive_gauges
from lockstep.features.archive.retention import drop_old_messages
from lockstep.features.archive.status import read_archive_status
from lockstep.features.history.promote import prepare_promotion, promote_shadow
from lockstep.features.history.rewind import RewindReason, prepare_rewind, rewind_stream
from lockstep.features.history.shadow import begin_shadow, prepare_shadow
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.inspect.trial import NothingToTry, try_stream
from lockstep.operations.past_batches import NotRewindable
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.verify.verify import verify_stream
from tests.features.archive.test_archive_retention import ALL
from tests.features.history.test_rewind_end_to_end import Wrong
from tests.support.adding_stream import adding
from tests.support.feed import COLUMNS, folded, session
from tests.support.local_runs import read_in_batches
from tests.support.plain_reader import rows_of

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

MONTH_SECONDS = 30 * 86_400.0
VALUES = session(9)


def archived(runs: LocalRuns) -> LocalRuns:
    return runs.of(dataclasses.replace(runs.stream, archive=Archive()))


def prove(runs: LocalRuns) -> str:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    return f"{report.status.value} {report.violations}"


def let_a_month_pass(runs: LocalRuns) -> None:
    """Age all files by a month and run housekeeping: it deletes all files that only earlier batches need."""
    write_checkpoint(runs.folders.table)
    files = [path for path in runs.folders.table.parent.rglob("*") if path.is_file()]
    for age, path in enumerate(sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)):
        then = path.stat().st_mtime - MONTH_SECONDS - age
        os.utime(path, (then, then))
    run_housekeeping(runs.folders, retention_seconds=3600.0)
    gauges = {each.name: each.value for each in read_archive_gauges(runs.folders)}
    files = list(runs.folders.archive.glob("*.parquet"))
    assert gauges == {BYTES: sum(file.stat().st_size for file in files), FILES: len(files)}
    assert delta_log.read_entry(runs.folders.table, 0) is None


@pytest.fixture
def topic(feed: Feed, runs: LocalRuns) -> str:
    """Return a topic that a wrong fold read a month ago and whose log is empty."""
    made = feed.create("values")
    wrong = archived(runs.of(adding(feed.pattern, transform=Wrong())))
    read_in_batches(feed, wrong, made, VALUES)
    feed.expire(made, len(VALUES))
    return made


def read_rows(runs: LocalRuns, topic: str) -> list[tuple[object, ...]]:
    """Return the rows by offset; the log may have gaps."""
    return sorted(rows_of(DeltaTable(runs.folders.table).to_pyarrow_table(), topic, COLUMNS))


def assert_repaired(mended: LocalRuns, topic: str) -> None:
    assert read_rows(mended, topic) == folded([(offset, "s", value) for offset, value in enumerate(VALUES)])
    assert prove(mended) == "proven ()"
    rows = DeltaTable(mended.folders.archive).to_pyarrow_table().sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(len(VALUES)))
    assert rows["value"].to_pylist() == VALUES


def test_a_bug_of_last_month_is_repaired_on_a_topic_whose_log_has_gone(runs: LocalRuns, topic: str) -> None:
    mended = archived(runs)
    assert prove(mended).startswith("violated")
    for start in (Earliest(), FirstSnapshot(), Latest()):
        declared = dataclasses.replace(mended.stream, topics=Topics(pattern=mended.stream.topics.pattern, start=start))
        tried = try_stream(declared, mended.settings, messages_max=100)
        assert tried.counts.messages == len(VALUES)
        assert [(each.topic, each.start, each.until) for each in tried.partitions] == [(topic, 0, len(VALUES))]
    with pytest.raises(NothingToTry):  # Kafka has no messages
        try_stream(runs.stream, runs.settings, messages_max=100)
    rewind_stream(mended.handle, "2", who="ann", why="off by one")
    mended.run()
    assert_repaired(mended, topic)


def test_a_bug_below_the_rewind_floor_is_repaired_from_the_start_without_a_savepoint(
    runs: LocalRuns, topic: str
) -> None:
    mended = archived(runs)
    let_a_month_pass(mended)
    with pytest.raises(NotRewindable, match="or to 0, which reads everything again"):
        prepare_rewind(mended.handle, "2")
    plan = prepare_rewind(mended.handle, "0").plan
    (partition,) = plan.partitions
    count = len(VALUES)
    assert (plan.read_again, plan.archived, partition.expired, partition.log_start) == (count, count, 0, count)
    assert (plan.rows, plan.to_at, plan.obstacles) == (len(read_rows(mended, topic)), None, ())
    rewind_stream(mended.handle, "0", who="ann", why="off by one")
    assert read_rows(mended, topic) == []
    mended.run()
    assert_repaired(mended, topic)


def test_a_shadow_below_the_rewind_floor_reads_the_archive_from_the_start_and_is_promoted(
    runs: LocalRuns, topic: str
) -> None:
    mended = archived(runs)
    let_a_month_pass(mended)
    (partition,) = prepare_shadow(mended.handle, "adding_shadow", "0").plan.partitions
    assert (partition.begins_at, partition.archived, partition.expired) == (0, len(VALUES), 0)
    begin_shadow(mended.handle, "adding_shadow", "0", code="", who="ann", why="off by one")
    assert drop_old_messages(mended.folders, ALL) == ()  # the shadow has not read them
    (reader,) = read_archive_status(mended.stream, mended.folders).readers
    assert (reader.stream, reader.first_batch) == ("adding_shadow", 1)
    shadow = mended.of(dataclasses.replace(mended.stream, name="adding_shadow"))
    shadow.run()
    assert prove(shadow) == "proven ()"
    assert read_archive_status(mended.stream, mended.folders).readers == ()
    run_housekeeping(mended.folders, retention_seconds=3600.0)  # the savepoint of the shadow has no table version
    promote_shadow(mended.handle, "adding_shadow", who="ann", why="off by one")
    assert_repaired(mended, topic)


def test_a_start_without_the_oldest_messages_is_refused_by_name(feed: Feed, runs: LocalRuns) -> None:
    """The first batches of the stream had no archive."""
    made = feed.create("values")
    read_in_batches(feed, runs, made, VALUES[:4])
    mended = archived(runs)
    read_in_batches(feed, mended, made, VALUES[4:])
    feed.expire(made, len(VALUES))
    let_a_month_pass(mended)
    (obstacle,) = prepare_rewind(mended.handle, "0").plan.obstacles
    assert obstacle.kind is RewindReason.EXPIRED
    assert f"has 4 of the offsets to be read again, in 1 partitions, most of {made}/0: 4 from 0 on" in obstacle.problem
    (unread,) = prepare_shadow(mended.handle, "adding_shadow", "0").plan.obstacles
    assert unread.kind is RewindReason.EXPIRED


@pytest.mark.slow
def test_an_old_life_of_a_topic_is_named_stays_retired_and_is_left_out_if_that_is_accepted(
    feed: Feed, runs: LocalRuns
) -> None:
    """A topic of four messages is deleted and created again."""
    ordered = archived(runs.of(adding(feed.pattern, Ordered())))
    made = feed.create("values")
    read_in_batches(feed, ordered, made, VALUES[:4])
    feed.delete(made)
    feed.create_again("values")
    read_in_batches(feed, ordered, made, VALUES)
    new = folded([(offset, "s", value) for offset, value in enumerate(VALUES)])
    assert len(read_rows(ordered, made)) > len(new)
    said = f"4 of the offsets to be read again are of topics that were deleted or re-created: {made}; no run reads them"
    (obstacle,) = prepare_rewind(ordered.handle, "0").plan.obstacles
    assert (obstacle.kind, said in obstacle.problem) == (RewindReason.EXPIRED, True)
    (unread,) = prepare_shadow(ordered.handle, "adding_shadow", "0").plan.obstacles
    assert (unread.kind, said in unread.problem) == (RewindReason.TOPIC, True)

    begin_shadow(ordered.handle, "adding_shadow", "0", code="", who="ann", why="a test", accept_deleted=True)
    shadow = ordered.of(dataclasses.replace(ordered.stream, name="adding_shadow"))
    assert shadow.run() is RunOutcome.ENDED
    assert read_rows(shadow, made) == new
    (lost,) = prepare_promotion(ordered.handle, "adding_shadow").plan.obstacles
    assert (lost.kind, said in lost.problem) == (RewindReason.TOPIC, True)
    assert prepare_promotion(ordered.handle, "adding_shadow", accept_deleted=True).plan.obstacles == ()

    rewind_stream(ordered.handle, "0", who="ann", why="a test", accept_expired=True)
    assert ordered.run() is RunOutcome.ENDED
    assert read_rows(ordered, made) == new
    found = {(row.until, row.retired, row.ending) for row in ordered.handle.positions.values()}
    assert found == {(0, True, "re-created"), (len(VALUES), False, None)}
    assert prove(ordered) == "proven ()"


def assert_read_again(runs: LocalRuns, grown: str, renewed: str) -> None:
    for topic, key in ((grown, "s1"), (renewed, "s")):
        assert read_rows(runs, topic) == folded([(offset, key, value) for offset, value in enumerate(VALUES)])


@pytest.mark.slow
def test_what_only_undone_batches_have_read_is_read_from_the_archive_and_archived_once(
    feed: Feed, runs: LocalRuns
) -> None:
    """One topic has grown and one was re-created since the target; Kafka has deleted messages of both."""
    ordered = archived(runs.of(adding(feed.pattern, Ordered())))
    grown = feed.create("grown")
    renewed = feed.create("renewed")
    ordered.run()
    target = str(ordered.handle.require_head().batch)
    feed.grow(grown, 2)
    feed.delete(renewed)
    feed.create_again("renewed")
    feed.send(grown, VALUES, partition=1)
    feed.send(renewed, VALUES)
    ordered.run()
    feed.expire(grown, 6, partition=1)
    feed.expire(renewed, 6)
    assert_read_again(ordered, grown, renewed)

    begin_shadow(ordered.handle, "adding_shadow", target, code="", who="ann", why="a test")
    assert drop_old_messages(ordered.folders, ALL) == ()
    shadow = ordered.of(dataclasses.replace(ordered.stream, name="adding_shadow"))
    assert shadow.run() is RunOutcome.ENDED
    assert_read_again(shadow, grown, renewed)
    assert prove(shadow) == "proven ()"

    plan = prepare_rewind(ordered.handle, target).plan
    assert (plan.archived, plan.read_again, plan.obstacles) == (12, 2 * len(VALUES), ())
    rewind_stream(ordered.handle, target, who="ann", why="a test")
    (reader,) = read_archive_status(ordered.stream, ordered.folders).readers
    assert reader.stream == ordered.stream.name
    assert ordered.run() is RunOutcome.ENDED
    assert_read_again(ordered, grown, renewed)
    feed.send(grown, VALUES, partition=1, key="t")
    ordered.run()
    assert prove(ordered) == "proven ()"
    rows = DeltaTable(ordered.folders.archive).to_pyarrow_table().sort_by("offset").to_pylist()
    offsets = [row["offset"] for row in rows if row["topic"] == grown]
    assert offsets == list(range(2 * len(VALUES)))
