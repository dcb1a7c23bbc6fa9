"""Clocks that are hours and days off, of drivers and of maintenance: no row, no order, no epoch depends on them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from lockstep import Limits
from lockstep.operations.compact import compact
from lockstep.operations.housekeeping import run_housekeeping
from lockstep.settings import KafkaSettings
from lockstep.table.commit import OutputLog
from lockstep.table.ledger import read_columns
from lockstep.verify.verify import verify_stream
from tests.faults.matrix.drivers import move_clock
from tests.faults.matrix.oracle import assert_all_read
from tests.faults.matrix.streams import faulty

if TYPE_CHECKING:
    from tests.faults.matrix.drivers import Drivers
    from tests.faults.matrix.oracle import Sent

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

DAY_SECONDS = 24 * 3600


def maintain(drivers: Drivers, hours: float) -> None:
    """Compaction and housekeeping on a machine whose clock is off; a rewind may go back a day."""
    with pytest.MonkeyPatch.context() as patch:
        move_clock(hours, patch.setattr)
        compact(drivers.folders)
        run_housekeeping(drivers.folders, retention_seconds=DAY_SECONDS)


def clocks(drivers: Drivers) -> list[int]:
    """By how many hours the clocks of the commits were off, in the order of the batches."""
    rows = read_columns(drivers.folders.ledger, ["batch", "topic_id", "partition", "committed_at"])
    off = [round((at.timestamp() - time.time()) / 3600) for at in rows["committed_at"].to_pylist() if at is not None]
    return [hours for hours, _ in groupby(off)]


@pytest.mark.fault("F39")
def test_runs_and_maintenance_with_clocks_that_are_off_lose_and_double_nothing(sent: Sent, drivers: Drivers) -> None:
    topic = sent.create("values", 2)
    for partition in range(2):
        sent.session(topic, 30, partition)
    for hours in (0, 1, -1, 25, -25, 0):
        sent.more(topic, 20)
        driver = drivers.start("--clock-hours", str(hours))
        assert driver.ended() == 0, driver.said[-3000:]
        assert_all_read(drivers.folders, sent.held)
        maintain(drivers, -hours)
        assert_all_read(drivers.folders, sent.held)
    assert clocks(drivers) == [0, 1, -1, 25, -25, 0]
    head = OutputLog(drivers.folders.table).base().head
    assert datetime.strptime(head.hour, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp() > time.time() + DAY_SECONDS / 2
    assert head.rewind_floor == 0  # all of it is from the last minutes, whatever the clocks show
    stream = faulty(sent.feed.pattern, Limits())
    report = verify_stream(stream, drivers.folders, KafkaSettings(bootstrap_servers=sent.feed.bootstrap_servers))
    assert report.status.value == "proven", report.violations


@pytest.mark.fault("F39")
@pytest.mark.parametrize("hours", [(25, -25), (-25, 25)], ids=["ahead, behind", "behind, ahead"])
def test_a_writer_hands_over_to_one_whose_clock_is_days_from_its_own(
    sent: Sent, drivers: Drivers, hours: tuple[int, int]
) -> None:
    topic = sent.create("values")
    sent.session(topic, 200)
    old = drivers.start("--never-ending", "--clock-hours", str(hours[0]), batch_messages=20)
    old.wait_for_batches(3)
    maintain(drivers, hours[1])
    new = drivers.start("--never-ending", "--clock-hours", str(hours[1]), batch_messages=20)
    assert old.ended() == 0
    assert "outcome: handed over" in old.said
    new.wait_for_batches(2)
    maintain(drivers, hours[0])
    sent.more(topic, 5)
    drivers.finish()
    assert new.ended() == 0
    assert "outcome: handed over" in new.said
    assert_all_read(drivers.folders, sent.held)
    assert clocks(drivers) == [*hours, 0]
