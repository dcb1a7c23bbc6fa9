"""Each fault is found by its rules and by no other rule; a clean stream passes all rules."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lockstep.errors import TableError
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.quality.check import POINTS_FOLDER, RULES, Checked, RowTraits, check_stream, make_result_path
from lockstep.features.quality.increment import make_state_path
from lockstep.features.quality.rules import RuleOutcome
from lockstep.features.retention.rows import drop_old_rows
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import FORGOTTEN
from tests.features.quality.stream_tables import (
    CLEAN,
    RANGE,
    Part,
    Place,
    clean_batches,
    quiet,
    write,
    write_more,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


PROOF = RULES[-1]
ALL_PASSED = dict.fromkeys(RULES, RuleOutcome.PASSED)


def outcomes(checked: Checked) -> dict[str, RuleOutcome]:
    return {result.rule: result.outcome for result in checked.results}


RESTING = Place("sensors.quiet", "id-q", 0)


class Kept(msgspec.Struct, frozen=True):
    """A clean stream with a partition at rest, its first check, and the number of Spark jobs of the check."""

    folders: StreamFolders
    checked: Checked
    jobs: int


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    batches = clean_batches(4)
    batches[1][RESTING] = Part([], [quiet(RESTING, 2)])
    folders = write(tmp_path_factory.mktemp("kept"), batches)
    return Kept(folders, *counting_jobs(spark, folders, "cold"))


def counting_jobs(spark: SparkSession, folders: StreamFolders, group: str) -> tuple[Checked, int]:
    """Run a check and count its jobs. It must leave nothing more in the cache."""
    context = spark.sparkContext
    context.setJobGroup(group, group)
    cached = context._jsc.getPersistentRDDs().size()  # noqa: SLF001  # the only way to see them
    checked = check_stream(spark, folders, full=True)
    assert context._jsc.getPersistentRDDs().size() <= cached  # noqa: SLF001  # as above
    return checked, len(context.statusTracker().getJobIdsForGroup(group))


def test_a_clean_stream_passes_every_rule_in_two_jobs_and_leaves_nothing_cached(
    spark: SparkSession, kept: Kept
) -> None:
    for table in (kept.folders.table, kept.folders.ledger):
        spark.read.format("delta").load(str(table)).inputFiles()  # Delta caches the states of the logs
    again, jobs_warm = counting_jobs(spark, kept.folders, "warm")
    assert outcomes(again) == ALL_PASSED
    assert again.passed
    assert again == kept.checked
    assert jobs_warm == 2  # the files of the table, and the aggregate
    assert kept.jobs <= jobs_warm + 2 * 2  # a new log needs a job for its schema and a job for its state


def test_the_counts_of_a_clean_partition_are_exact(kept: Kept) -> None:
    first, *others = kept.checked.partitions
    assert [Place(p.topic, p.topic_id, p.partition) for p in (first, *others)] == [*CLEAN, RESTING]
    assert (first.batches, first.rows, first.distinct_rows, first.ledger_rows) == (4, 132, 132, 132)
    assert (first.offsets_read, first.messages, first.messages_with_rows, first.holes) == (4 * RANGE, 108, 84, 12)
    assert (first.first_event_time_us, first.last_event_time_us) == (101_000_000, 217_000_000)
    assert (first.sequence_falls, first.sequence_restarts) == (0, 3)


def test_an_empty_stream_has_nothing_to_check_and_does_not_pass(spark: SparkSession, tmp_path: Path) -> None:
    checked = check_stream(spark, write(tmp_path, []))
    assert outcomes(checked) == dict.fromkeys(RULES, RuleOutcome.NOTHING)
    assert not checked.passed


def test_a_null_in_a_proof_column_is_found_and_nothing_is_judged_by_misread_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = clean_batches(2)
    batches[1][CLEAN[0]].row(132)["_session"] = None
    checked = check_stream(spark, write(tmp_path, batches))
    assert outcomes(checked) == dict.fromkeys(RULES, RuleOutcome.CRASHED) | {PROOF: RuleOutcome.FAILED}
    assert [place["nulls"] for place in checked.results[-1].worst] == [1]
    assert not checked.passed


def test_a_ledger_that_is_a_batch_behind_is_checked_up_to_there(spark: SparkSession, tmp_path: Path) -> None:
    checked = check_stream(spark, write(tmp_path, clean_batches(3), forwarded=2))
    assert (checked.versions.batch, checked.versions.table) == (2, 3)
    assert checked.passed


@pytest.mark.slow
def test_rows_that_retention_dropped_are_not_missed_and_others_are(spark: SparkSession, tmp_path: Path) -> None:
    hours = [f"2026-01-01T0{number}" for number in (0, 1, 3)]
    folders = write(tmp_path, clean_batches(3), hours=hours)
    retained = drop_old_rows(folders, timedelta(hours=1), cause="test")
    assert (retained.plan.hours, retained.retention and retained.retention.batch) == (2, 2)
    checked = check_stream(spark, folders)
    assert (outcomes(checked), checked.rows * 2) == (ALL_PASSED, retained.plan.rows)
    (removed, *_) = (folders.table / f"commit_hour={hours[2]}").iterdir()
    pq.write_table(pq.read_table(removed).slice(1), removed)
    broken = outcomes(check_stream(spark, folders, full=True))
    assert broken["rows_match_ledger"] is RuleOutcome.FAILED


def test_rows_that_retention_drops_between_two_checks_are_not_counted_any_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = write(tmp_path, clean_batches(3), hours=[f"2026-01-01T0{number}" for number in (0, 1, 3)])
    before = check_stream(spark, folders)
    dropped = drop_old_rows(folders, timedelta(hours=1), cause="test").plan.rows
    checked = check_stream(spark, folders)
    assert (checked.coverage.full, checked.rows) == (False, before.rows - dropped)
    assert checked.partitions == before.partitions


def test_another_class_judges_forgotten_partitions_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    """A class without order accepts a fall in one partition and a repeat in another; their sum would seem ordered."""
    batches = clean_batches(3)
    falls, stays, repeats = CLEAN
    for row in batches[0][falls].files[0]:
        row["_sequence"] = 1 if row["_offset"] == 103 else row["_sequence"]
    batches[0][repeats].change_ledger(repeats=1)
    for gone in (falls, repeats):
        last = msgspec.structs.replace(quiet(gone, 2), start=100 + RANGE, until=100 + RANGE, lifecycle=FORGOTTEN)
        batches[1][gone] = Part([], [last])
        del batches[2][gone]
    folders = write(tmp_path, batches[:2])
    unordered = check_stream(spark, folders, traits=RowTraits(unordered_because="the numbers of a session may fall"))
    assert [each.topic for each in unordered.partitions] == ["(forgotten topics)", stays.topic]
    write_more(folders, batches, 2)
    found = check_stream(spark, folders)
    whole = check_stream(spark, folders, full=True)
    assert outcomes(found) == outcomes(whole) == {**ALL_PASSED, "sequence": RuleOutcome.FAILED}
    assert found.coverage.reason == "the rules were changed since the last check"


def test_tables_that_are_two_batches_apart_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(3), forwarded=1)
    with pytest.raises(TableError, match="differ by more than one batch"):
        check_stream(spark, folders)


def test_the_last_result_is_kept_beside_the_table(kept: Kept) -> None:
    folders = kept.folders
    checked = kept.checked
    read = json.loads(make_result_path(folders).read_text())
    assert msgspec.convert(read["checked"], Checked) == checked
    assert [part["success"] for part in read["great_expectations"]] == [True, True]
    points = make_result_path(folders).parent / POINTS_FOLDER
    assert set(points.parent.iterdir()) == {make_result_path(folders), make_state_path(folders), points}


def test_rows_of_an_erased_session_are_not_missed_and_others_are(spark: SparkSession, tmp_path: Path) -> None:
    folders = write(tmp_path, clean_batches(2))
    before = check_stream(spark, folders)
    session = DeltaTable(folders.table).to_pyarrow_table()["_session"][0].as_py()
    erased = erase_session(folders, EraseRequest(session=session), EraseContext(), who="ann", why="test")
    checked = check_stream(spark, folders)
    assert checked.coverage.reason == "there is no earlier result to continue from"
    assert (outcomes(checked), checked.rows) == (ALL_PASSED, before.rows - erased.plan.rows)


@pytest.mark.parametrize(("hidden", "outcome"), [({113, 114}, RuleOutcome.PASSED), (set(), RuleOutcome.FAILED)])
def test_rows_of_timers_hide_no_fall_and_no_restart_by_an_end_and_a_snapshot(
    spark: SparkSession, tmp_path: Path, hidden: set[int], outcome: RuleOutcome
) -> None:
    (batch,) = clean_batches(1)
    part = batch[CLEAN[0]]
    (rows,), fires = part.files, 115
    firing = [row for row in rows if row["_emit_offset"] == fires]
    for row in firing:
        row["_row"] += 2
        row["_sequence"] = 1
    after = [row for row in rows if row["_session"] == "s1" and fires < row["_emit_offset"] < fires + 3]
    for row in after:
        row["_sequence"] = row["_emit_offset"] - fires + 1
    timers = [
        part.row(offset) | {"_emit_offset": fires, "_row": at, "_sequence": None} for at, offset in [(0, 101), (1, 102)]
    ]
    at = rows.index(firing[0])
    part.files[0] = [row for row in (*rows[:at], *timers, *rows[at:]) if row["_offset"] not in hidden]
    own = {row["_offset"] for row in part.files[0]}
    part.change_ledger(
        rows=len(part.files[0]),
        timer_rows=2,
        with_rows=len(own),
        accepted_without_row=part.ledger[0].accepted_without_row + len(hidden),
    )
    folders = write(tmp_path, [batch])
    assert outcomes(check_stream(spark, folders)) == ALL_PASSED | {"sequence": outcome}
