"""Full or broken disks: nothing incomplete is visible, the run ends with an error, and the next run continues."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.table.layout import StreamFolders
from tests.faults.matrix.drivers import wait_until
from tests.faults.matrix.oracle import assert_all_read, assert_whole
from tests.faults.matrix.test_driver_kills import entry_after
from tests.faults.matrix.traced import Injection, Tracer, needs_strace
from tests.support.small_disk import SmallDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.matrix.drivers import Drivers
    from tests.faults.matrix.oracle import Sent


UPDATES = 2_000


@pytest.mark.fault("F14")
def test_no_room_for_the_table_ends_the_run_and_room_lets_the_next_go_on(
    sent: Sent, drivers: Drivers, tmp_path: Path
) -> None:
    sent.session(sent.create("values"), UPDATES)
    with SmallDisk(tmp_path / "tables", tmp_path / "disk.log", megabytes=24) as disk:
        folders = StreamFolders("faulty", disk.seen)
        driver = drivers.start("--never-ending", before=disk.entered, batch_messages=5)
        driver.wait_for_batches(3)
        disk.fill()
        assert driver.ended() != 0
        assert disk.is_full
        assert "No space left on device" in driver.said
        assert_whole(folders, sent.held)
        disk.empty()
        again = drivers.start(before=disk.entered, batch_messages=10_000)
        assert again.ended() == 0, again.said[-2000:]
        assert_all_read(folders, sent.held)


@pytest.mark.slow
@pytest.mark.fault("F13")
def test_without_room_for_hot_state_the_durable_one_serves(sent: Sent, drivers: Drivers, tmp_path: Path) -> None:
    """A start on a full local disk needs the state of its session: private copies elsewhere provide it."""
    topic = sent.create("values")
    sent.session(topic, UPDATES)
    first = drivers.start("--never-ending", batch_messages=5)
    first.wait_for_batches(3)
    first.kill()
    with SmallDisk(tmp_path / "local", tmp_path / "disk.log", megabytes=1) as disk:
        disk.fill()
        starved = drivers.start(before=disk.entered, batch_messages=500)
        assert starved.ended() == 0, starved.said[-2000:]
        assert (disk.is_full, list(disk.seen.rglob("*.lmdb"))) == (True, [])
        assert_all_read(drivers.folders, sent.held)
        disk.empty()
        sent.more(topic, 5)
        again = drivers.start(before=disk.entered)
        assert again.ended() == 0, again.said[-2000:]
        assert len(list(disk.seen.rglob("*.lmdb"))) == 1
    assert_all_read(drivers.folders, sent.held)


@dataclasses.dataclass(frozen=True)
class Broken:
    """A call that fails, and whether the run survives it.

    Attributes:
        at: The call, for the folders of a stream.
        survived: Whether the run continues.
    """

    at: Callable[[StreamFolders], Injection]
    survived: bool = False


CALLS = {
    "EIO where the ledger's folder is synced": Broken(lambda to: Injection("fsync", "error=EIO", to.ledger)),
    "EIO where the state's folder is synced": Broken(
        lambda to: Injection("fsync", "error=EIO", to.state), survived=True
    ),
    "ENOSPC where the entry is published": Broken(
        lambda to: Injection("link", "error=ENOSPC", entry_after(to.table, more=3))
    ),
    "EIO where the entry is published": Broken(
        lambda to: Injection("link", "error=EIO", entry_after(to.table, more=3))
    ),
    "EIO where the published entry is synced": Broken(
        lambda to: Injection("fsync", "error=EIO", entry_after(to.table, more=3))
    ),
    "EIO where the ledger's entry is published": Broken(
        lambda to: Injection("link", "error=EIO", entry_after(to.ledger, more=3)), survived=True
    ),
    "ENOSPC where the log checkpoint is published": Broken(
        lambda to: Injection("rename", "error=ENOSPC", staged(to.table / "_delta_log" / checkpoint_after(to.table))),
        survived=True,
    ),
}


@pytest.mark.fault("F15")
@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("broken", CALLS.values(), ids=CALLS)
def test_a_call_that_fails_loses_nothing(sent: Sent, drivers: Drivers, tmp_path: Path, broken: Broken) -> None:
    topic = sent.create("values")
    sent.session(topic, UPDATES)
    driver = drivers.start("--never-ending", batch_messages=5)
    driver.wait_for_batches(2)
    with Tracer(tmp_path / "strace.log", broken.at(drivers.folders), [driver.process.pid]) as tracer:
        wait_until(lambda: "(INJECTED)" in tracer.text, "the failure")
        batches = driver.batches
        wait_until(lambda: not driver.lives or driver.batches > batches + 2, "what comes of it")
    assert driver.lives is broken.survived, driver.said[-2000:]
    if driver.lives:
        driver.kill()
    else:
        assert driver.process.returncode != 0
        assert "next:" in driver.said or "Input/output error" in driver.said
    assert_whole(drivers.folders, sent.held)
    drivers.finish()
    assert_all_read(drivers.folders, sent.held)


def staged(path: Path) -> Path:
    """Return the path where delta-rs writes a file of the log before it renames the file."""
    return path.with_name(f"{path.name}#1")


def checkpoint_after(table: Path) -> str:
    """Return the next log checkpoint's name."""
    newest = int(max((table / "_delta_log").glob("*.json")).stem)
    return f"{(newest // 20 + 1) * 20:020d}.checkpoint.parquet"
