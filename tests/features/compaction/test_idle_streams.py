"""The compaction of an idle stream closes its open hour; a working writer keeps its hour."""

from __future__ import annotations

import os
import time

import pytest

from lockstep.features.compaction.compact import IDLE_SECONDS, compact, find_idle_hour, plan_compaction
from lockstep.features.compaction.run import Rewriter
from lockstep.table import delta_log
from lockstep.table.head import Head
from lockstep.table.side_tables import SideLogs
from tests.support.stream_table import HOUR, NEXT_HOUR, StreamTable, live_files, stored_rows

A0 = ("a", 0)
LONG = IDLE_SECONDS + 1


@pytest.mark.parametrize(
    ("hour", "closed", "clock", "seconds", "expected"),
    [
        (HOUR, "", NEXT_HOUR, LONG, HOUR),
        (HOUR, "", NEXT_HOUR, IDLE_SECONDS - 1, ""),
        (HOUR, "", HOUR, LONG, ""),
        (NEXT_HOUR, "", HOUR, LONG, ""),
        (HOUR, HOUR, NEXT_HOUR, LONG, ""),
        ("", "", NEXT_HOUR, LONG, ""),
    ],
    ids=["idle", "young", "not over", "clock behind", "closed", "no batch"],
)
def test_an_hour_is_idle_when_it_is_over_and_its_last_batch_is_old(
    hour: str, closed: str, clock: str, seconds: float, expected: str
) -> None:
    head = Head(stream="s", cluster_id="c", hour=hour, closed_hour=closed)
    assert expected == find_idle_hour(head, clock, seconds)


def test_the_hour_of_an_idle_stream_is_closed_and_compacted(table: StreamTable) -> None:
    commit_batches(table)
    make_old(table)
    before = stored_rows(table.folders)
    plan = plan_compaction(table.folders)
    assert (plan.closes_hour, plan.table.files_before, plan.table.files_after) == (HOUR, 3, 1)
    assert table.output.base().head.closed_hour == ""
    done = compact(table.folders)
    assert plan == done.plan
    assert (table.output.base().head.closed_hour, done.table.hours) == (HOUR, (HOUR,))
    assert before == stored_rows(table.folders)
    assert len(live_files(table.folders)) == 1
    assert compact(table.folders).plan.closes_hour == ""


def test_the_hour_of_a_stream_that_commits_stays_open_and_nothing_starts_spark(table: StreamTable) -> None:
    commit_batches(table)
    version = table.output.base().version
    done = compact(table.folders, make_rewriter=refuse_to_start)
    assert (done.plan.closes_hour, done.table.bins, version) == ("", 0, table.output.base().version)


def commit_batches(table: StreamTable) -> None:
    sides = SideLogs(table.folders)
    for _ in range(3):
        sides.catch_up(table.batch({A0: 5}).head)


def make_old(table: StreamTable) -> None:
    """Set the time of the newest batch far back."""
    entry = delta_log.make_entry_path(table.folders.table, table.output.base().head.batch_version)
    os.utime(entry, (time.time() - LONG, time.time() - LONG))


def refuse_to_start() -> Rewriter:
    raise AssertionError("nothing is to be rewritten")
