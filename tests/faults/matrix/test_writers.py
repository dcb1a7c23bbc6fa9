"""Two drivers of one stream, as processes: in any sleep, wake or race, one of them writes, and once (I6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.matrix.oracle import assert_all_read, assert_whole
from tests.support.plain_reader import heads, named_files

if TYPE_CHECKING:
    from tests.faults.matrix.drivers import Drivers
    from tests.faults.matrix.oracle import Sent


@pytest.mark.slow
@pytest.mark.fault("F10")
def test_a_driver_that_wakes_up_after_its_replacement_took_over_is_fenced(sent: Sent, drivers: Drivers) -> None:
    topic = sent.create("values")
    sent.session(topic, 800)
    sleeper = drivers.start("--never-ending", batch_messages=5)
    sleeper.wait_for_batches(3)
    sleeper.stop()
    replacement = drivers.start("--patience", "1")
    assert replacement.ended() == 0
    assert_all_read(drivers.folders, sent.held)
    sent.more(topic, 5)
    before = heads(drivers.folders.table)
    sleeper.wake()
    assert sleeper.ended() == 0
    assert "outcome: fenced" in sleeper.said
    assert heads(drivers.folders.table) == before
    drivers.finish()
    assert_all_read(drivers.folders, sent.held)


@pytest.mark.fault("F41")
def test_of_two_drivers_started_together_each_row_is_written_by_one(sent: Sent, drivers: Drivers) -> None:
    topic = sent.create("values", 2)
    for partition in range(2):
        sent.session(topic, 200, partition)
    pair = [drivers.start(), drivers.start()]
    assert [driver.ended() for driver in pair] == [0, 0], "".join(driver.said[-1500:] for driver in pair)
    outcomes = sorted(driver.said.rpartition("outcome: ")[2].strip() for driver in pair)
    assert "all that was available is committed" in outcomes
    assert_all_read(drivers.folders, sent.held)
    on_disk = {str(path.relative_to(drivers.folders.table)) for path in drivers.folders.table.rglob("rows-*.parquet")}
    assert set(named_files(drivers.folders.table)) <= on_disk


@pytest.mark.fault("F41")
@pytest.mark.slow
def test_however_often_two_drivers_race_the_table_stays_whole(sent: Sent, drivers: Drivers) -> None:
    topic = sent.create("values")
    sent.session(topic, 50)
    for _ in range(6):
        sent.more(topic, 50)
        pair = [drivers.start("--patience", "1"), drivers.start("--patience", "1")]
        assert [driver.ended() for driver in pair] == [0, 0], "".join(driver.said[-1500:] for driver in pair)
        assert_whole(drivers.folders, sent.held)
    drivers.finish()
    assert_all_read(drivers.folders, sent.held)
