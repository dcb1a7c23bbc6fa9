"""The live report: its content, its write interval and the rates computed from it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from lockstep.control.live_report import (
    BATCHES_MAX,
    LiveBatch,
    LiveReport,
    LiveTopic,
    compute_rates,
    read_live_report,
    write_live_report,
)
from lockstep.engine.driver import live_reports
from lockstep.engine.driver.live_reports import LiveReports
from lockstep.engine.driver.metrics import BatchReport
from lockstep.model.message_counts import MessageCounts

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
EMPTY = LiveReport(epoch=3, run_id="run", cause="first", claimed_at=NOW - 1_000)


def live_batch(number: int, *, ago: float, messages: int) -> LiveBatch:
    """Return a batch that took one second, with two rows a message."""
    return LiveBatch(
        batch=number,
        committed_at=NOW - ago,
        messages=messages,
        rows=2 * messages,
        quarantined=0,
        plan_seconds=0.125,
        task_seconds=0.5,
        check_seconds=0.125,
        commit_seconds=0.25,
        cpu_seconds=0.75,
        state_bytes=10,
        freshness_seconds=None,
    )


def committed(number: int) -> BatchReport:
    """Return a batch as the loop reports it."""
    return BatchReport(
        batch=number,
        offsets=5,
        accounted=5,
        counts=MessageCounts(messages=5),
        rows=7,
        holes=0,
        topics=1,
        lag_messages=0,
        freshness_seconds=0.5,
        plan_seconds=0.25,
        task_seconds=1.0,
        batch_seconds=2.0,
        commit_seconds=0.75,
        cpu_seconds=0.5,
        state_bytes=9,
        epoch=3,
    )


def topics(lag: int) -> tuple[LiveTopic, ...]:
    """Return one topic of two partitions."""
    return (LiveTopic("a", (0, 1), (lag, 0), (1, 0)),)


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_those_of_the_batches_within_the_window(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # a repeatable test
    span = chance.choice((5, 50, 200))
    ages = sorted((chance.uniform(0, span) for _ in range(chance.randrange(1, 50))), reverse=True)
    first = chance.choice((1, 2, 5_000))  # a run continues the numbers of the run before
    batches = tuple(
        live_batch(number, ago=ago, messages=chance.randrange(1_000)) for number, ago in enumerate(ages, start=first)
    )
    report = LiveReport(epoch=1, run_id="", cause="", claimed_at=NOW - chance.uniform(1, 400), batches=batches)
    rates = compute_rates(report, NOW, 60.0)
    window = min(60.0, NOW - report.claimed_at)
    expected = [each for each in batches if each.committed_at > NOW - window]
    assert rates.batches == len(expected)
    assert rates.messages == pytest.approx(sum(each.messages for each in expected) / window)
    assert rates.rows == pytest.approx(2 * rates.messages)
    assert rates.cpu_cores == pytest.approx(0.75 * len(expected) / window)
    assert rates.batch_seconds == (1.0 if expected else None)
    phases = {"plan": 0.125, "tasks": 0.5, "checks": 0.125, "commit": 0.25}
    assert rates.phase_seconds == (phases if expected else {})


def test_batches_that_the_report_no_longer_holds_do_not_lower_the_rate() -> None:
    seconds = range(BATCHES_MAX, 0, -1)
    batches = tuple(live_batch(1_000 - ago, ago=ago / 24, messages=50) for ago in seconds)
    report = LiveReport(epoch=1, run_id="", cause="", claimed_at=NOW - 1_000, batches=batches)
    assert compute_rates(report, NOW, 60.0).messages == pytest.approx(24 * 50, rel=0.01)  # 24 a second, for ten seconds


def test_a_report_is_written_at_most_twice_a_second_and_ends_with_the_newest_batch(tmp_path: Path) -> None:
    reports = LiveReports(tmp_path, EMPTY)
    clock = [100.0]
    writes = list[LiveReport]()
    with (
        mock.patch("lockstep.engine.driver.live_reports.time.monotonic", side_effect=lambda: clock[0]),
        mock.patch.object(live_reports, "write_live_report", lambda _, report: writes.append(report)),
    ):
        for number in range(1, 101):
            reports.note(committed(number))
            reports.publish(lambda: topics(0))
            clock[0] += 0.125
        for _ in range(10):
            reports.publish(lambda: topics(0))
            clock[0] += 0.125
        assert len(writes) == 26
        assert writes[-1].batches[-1].batch == 100
        clock[0] += 0.5
        reports.publish(lambda: topics(8))  # no batch, but waiting messages
        assert (len(writes), writes[-1].lag_messages) == (27, 8)


def test_a_report_has_the_newest_batches_with_their_phases(tmp_path: Path) -> None:
    reports = LiveReports(tmp_path, EMPTY)
    for number in range(1, BATCHES_MAX + 11):
        reports.note(committed(number))
    reports.publish(lambda: topics(1))
    found = read_live_report(tmp_path, 3)
    assert found is not None
    assert [each.batch for each in found.batches] == list(range(11, BATCHES_MAX + 11))
    newest = found.batches[-1]
    assert (newest.plan_seconds, newest.task_seconds, newest.check_seconds, newest.commit_seconds) == (
        *(0.25, 1.0),
        *(0.25, 0.75),
    )
    assert found.topics == topics(1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 64_000


def test_a_full_disk_neither_ends_the_run_nor_loses_the_next_report(tmp_path: Path) -> None:
    reports = LiveReports(tmp_path, EMPTY)
    clock = [100.0]
    with mock.patch("lockstep.engine.driver.live_reports.time.monotonic", side_effect=lambda: clock[0]):
        with mock.patch.object(live_reports, "write_live_report", side_effect=OSError("full")):
            reports.publish(lambda: topics(5))
        clock[0] += 1
        reports.publish(lambda: topics(5))
    found = read_live_report(tmp_path, 3)
    assert found is not None
    assert found.lag_messages == 5


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"epoch": "x"}', b"\xff\xfe", b"null"])
def test_a_damaged_report_is_none(tmp_path: Path, content: bytes) -> None:
    write_live_report(tmp_path, EMPTY)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert read_live_report(tmp_path, 3) is None
    assert read_live_report(tmp_path, 4) is None
