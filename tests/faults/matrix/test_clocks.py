"""Rows, order and epochs do not depend on clocks of drivers and maintenance that are hours or days off, or jump."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from lockstep import Limits
from lockstep.features.compaction.compact import compact
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.settings import KafkaSettings
from lockstep.table.commit import OutputLog
from lockstep.verify.verify import verify_stream
from tests.faults.matrix.drivers import WallClock, wait_until
from tests.faults.matrix.oracle import assert_all_read, reached
from tests.faults.matrix.streams import faulty
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.matrix.drivers import Driver, Drivers
    from tests.faults.matrix.oracle import Sent

pytestmark = pytest.mark.slow

KEEP_SECONDS = 24.5 * 3600
"""The range of rewinds; a clock that is ahead costs a day of it at most, which leaves half an hour."""


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock").set(0)


def maintain(drivers: Drivers, clock: WallClock) -> None:
    """Run compaction and housekeeping on a machine with this clock."""
    with pytest.MonkeyPatch.context() as patch:
        clock.follow(patch.setattr)
        compact(drivers.folders)
        run_housekeeping(drivers.folders, retention_seconds=KEEP_SECONDS)


def list_clocks(drivers: Drivers) -> list[int]:
    """List the clock offsets of the commits in hours, in the order of the batches."""
    rows = sorted(read_table(drivers.folders.ledger).to_pylist(), key=lambda row: row["batch"])
    return [
        hours for hours, _ in groupby(round((row["committed_at"].timestamp() - time.time()) / 3600) for row in rows)
    ]


def assert_proven(sent: Sent, drivers: Drivers) -> None:
    """All is read, and no batch is lost to a rewind: all are from the last minutes, for any clock."""
    assert_all_read(drivers.folders, sent.held, compacted=True)
    assert OutputLog(drivers.folders.table).base().head.rewind_floor == 0
    stream = faulty(sent.feed.pattern, Limits())
    report = verify_stream(stream, drivers.folders, KafkaSettings(bootstrap_servers=sent.feed.bootstrap_servers))
    assert report.status.value == "proven", report.violations


def send_and_wait(sent: Sent, drivers: Drivers, driver: Driver, topic: str) -> None:
    """Send more messages, and wait until the run has committed them."""
    sent.more(topic, 5)
    place = (topic, 0)

    def is_read() -> bool:
        return reached(drivers.folders, compacted=True).get(place) == len(sent.held[place])

    wait_until(lambda: not driver.lives or is_read(), "the messages are read")
    assert driver.lives, driver.said[-3000:]


@pytest.mark.fault("F39")
def test_runs_and_maintenance_with_clocks_that_are_off_lose_and_double_nothing(
    sent: Sent, drivers: Drivers, clock: WallClock, tmp_path: Path
) -> None:
    topic = sent.create("values", 2)
    other = WallClock(tmp_path / "other")
    for partition in range(2):
        sent.session(topic, 30, partition)
    for hours in (0, 1, -1, 25, -25, 0):
        sent.more(topic, 20)
        clock.set(hours)
        driver = drivers.start("--clock", str(clock.file))
        assert driver.ended() == 0, driver.said[-3000:]
        assert_all_read(drivers.folders, sent.held, compacted=True)
        maintain(drivers, other.set(-hours))
        assert_all_read(drivers.folders, sent.held, compacted=True)
    assert list_clocks(drivers) == [0, 1, -1, 25, -25, 0]
    hour = datetime.strptime(OutputLog(drivers.folders.table).base().head.hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    assert hour.timestamp() > time.time() + 23 * 3600  # hours never go back
    assert_proven(sent, drivers)


@pytest.mark.fault("F39")
def test_a_clock_that_jumps_under_a_run_loses_and_doubles_nothing(
    sent: Sent, drivers: Drivers, clock: WallClock
) -> None:
    topic = sent.create("values")
    jumps = (0, 25, -25, 1, 0)
    sent.session(topic, 30)
    driver = drivers.start("--never-ending", "--clock", str(clock.file))
    for hours in jumps:
        clock.set(hours)
        send_and_wait(sent, drivers, driver, topic)
        maintain(drivers, clock)
    drivers.finish()
    assert driver.ended() == 0
    assert "outcome: handed over" in driver.said
    assert list_clocks(drivers) == [*jumps]
    assert_proven(sent, drivers)


@pytest.mark.fault("F39")
@pytest.mark.parametrize("hours", [(25, -25), (-25, 25)], ids=["ahead, behind", "behind, ahead"])
def test_a_writer_hands_over_to_one_whose_clock_is_days_from_its_own(
    sent: Sent, drivers: Drivers, hours: tuple[int, int], tmp_path: Path
) -> None:
    topic = sent.create("values")
    clocks = [WallClock(tmp_path / str(each)).set(each) for each in hours]
    sent.session(topic, 100)
    old = drivers.start("--never-ending", "--clock", str(clocks[0].file))
    send_and_wait(sent, drivers, old, topic)
    maintain(drivers, clocks[1])
    new = drivers.start("--never-ending", "--clock", str(clocks[1].file))
    assert old.ended() == 0
    assert "outcome: handed over" in old.said
    send_and_wait(sent, drivers, new, topic)
    maintain(drivers, clocks[0])
    drivers.finish()
    assert new.ended() == 0
    assert "outcome: handed over" in new.said
    assert list_clocks(drivers) == [*hours]
    assert_proven(sent, drivers)
