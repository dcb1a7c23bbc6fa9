"""The figures of a window of batches, as the UI plots them."""

from __future__ import annotations

import msgspec

from lockstep.engine.driver.metrics import BatchReport, ReportWindow, RunStart
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.model.message_counts import MessageCounts

BATCH = BatchReport(
    batch=1,
    offsets=102,
    accounted=102,
    counts=MessageCounts(messages=100, quarantined=1),
    rows=300,
    holes=0,
    topics=2,
    lag_messages=7,
    freshness_seconds=2.0,
    batch_seconds=0.5,
    cpu_seconds=0.001,
    state_bytes=10,
    epoch=4,
    commit_seconds=0.1,
    headroom_seconds=7200.0,
)


def test_a_window_sums_up_its_batches_and_keeps_the_last_state() -> None:
    later = msgspec.structs.replace(BATCH, batch=2, lag_messages=3, batch_seconds=1.5, headroom_seconds=3600.0)
    figures = ReportWindow(reports=[BATCH, later]).summary()
    assert list(figures)[:4] == [
        "lag_messages",
        "freshness_p50_seconds",
        "freshness_p99_seconds",
        "completeness_percent",
    ]
    assert figures == {
        "completeness_percent": 100.0,
        "batch": 2.0,
        "batches": 2.0,
        "messages": 200.0,
        "rows": 600.0,
        "quarantined": 2.0,
        "lag_messages": 3.0,
        "topics": 2.0,
        "epoch": 4.0,
        "state_bytes": 20.0,
        "batch_seconds_mean": 1.0,
        "batch_seconds_max": 1.5,
        "commit_seconds_mean": 0.1,
        "cpu_seconds_per_million_messages": 10.0,
        "freshness_p50_seconds": 2.0,
        "freshness_p99_seconds": 2.0,
        "headroom_hours": 1.0,
    }


def test_a_window_is_complete_only_if_every_offset_is_accounted_for() -> None:
    lost = msgspec.structs.replace(BATCH, offsets=10_000_000, accounted=9_999_999)
    assert ReportWindow(reports=[BATCH, lost]).summary()["completeness_percent"] == 99.999
    quiet = msgspec.structs.replace(BATCH, offsets=0, accounted=0)
    assert "completeness_percent" not in ReportWindow(reports=[quiet]).summary()


def test_a_restart_is_told_once_with_its_cause_and_its_gap() -> None:
    first = msgspec.structs.replace(BATCH, restart=RunStart("handover; new topics: a", 1.25))
    figures = ReportWindow(reports=[first, BATCH]).summary()
    assert (figures["restart_cause"], figures["restart_gap_seconds"]) == ("handover; new topics: a", 1.25)
    assert "restart_cause" not in ReportWindow(reports=[BATCH]).summary()


def test_a_first_run_has_no_gap_and_quiet_batches_no_freshness() -> None:
    first = msgspec.structs.replace(
        BATCH,
        counts=MessageCounts(),
        freshness_seconds=None,
        headroom_seconds=None,
        restart=RunStart("first start", None),
    )
    figures = ReportWindow(reports=[first]).summary()
    absent = {"restart_gap_seconds", "freshness_p50_seconds", "headroom_hours", "cpu_seconds_per_million_messages"}
    assert absent.isdisjoint(figures)
    assert figures["restart_cause"] == "first start"


def test_partitions_that_wait_behind_an_open_transaction_are_told_for_as_long_as_they_do() -> None:
    worst = OpenTransaction("books.eth", 1, stable_end=3, high_watermark=7, seconds=90.4)
    waiting = msgspec.structs.replace(BATCH, stalls=(OpenTransaction("books.btc", 0, 1, 2, 61.0), worst))
    figures = ReportWindow(reports=[BATCH, waiting]).summary()
    assert (figures["stalled_partitions"], figures["stalled_seconds"]) == (2.0, 90.4)
    assert figures["stalled_worst"] == (
        "books.eth/1: 4 offsets from 3 on wait behind an open transaction, for 90 s now"
    )
    assert "stalled_partitions" not in ReportWindow(reports=[waiting, BATCH]).summary()
