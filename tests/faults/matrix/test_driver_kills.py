"""kill -9 of a real driver on Spark at exact system calls, three times each: no row is lost, doubled or hidden.

Each kill is proven by strace's log; the table is compared with the plain fold directly after it, and at the end. Only
the test restarts. Without strace, the tests are reported as not run.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.matrix.drivers import wait_until
from tests.faults.matrix.oracle import assert_all_read, assert_whole
from tests.faults.matrix.state_files import newest_is_base
from tests.faults.matrix.traced import Injection, Tracer, needs_strace
from tests.support.plain_reader import heads, named_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.matrix.drivers import Driver, Drivers
    from tests.faults.matrix.oracle import Sent

    Fault = Callable[[Drivers, Driver, Path], None]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200), needs_strace]

KILLS = 3
UPDATES = 900
PARTITIONS = 2
KILL = "signal=SIGKILL"


@pytest.fixture(params=["--never-ending", "--host"])
def killed_thrice(
    sent: Sent, drivers: Drivers, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[[Fault], None]:
    """Kill three drivers one after the other with a fault, and finish by hand.

    The driver runs the stream alone, or as a host with another stream.
    """

    def run(fault: Fault) -> None:
        topic = sent.create("values", PARTITIONS)
        for partition in range(PARTITIONS):
            sent.session(topic, UPDATES, partition)
        for number in range(KILLS):
            driver = drivers.start("--spark", request.param)
            driver.wait_for_batches(2)
            fault(drivers, driver, tmp_path / f"strace-{number}.log")
            wait_until(lambda: not driver.lives, "the driver's death")  # noqa: B023  # waited for within the loop
            assert driver.process.returncode == -signal.SIGKILL
            drivers.wait_until_gone()
            assert_whole(drivers.folders, sent.held)
        for partition in range(PARTITIONS):
            sent.more(topic, 5, partition)
        drivers.finish()
        assert_all_read(drivers.folders, sent.held)
        print(f"{fault.__name__}: {KILLS} kills, batch {heads(drivers.folders.table)[-1]['batch']}")  # noqa: T201

    return run


@pytest.mark.fault("F01")
def test_after_planning_before_the_job(killed_thrice: Callable[[Fault], None]) -> None:
    """Spark's driver has passed the planned bins to the JVM in a file, and is about to remove that file.

    It is stopped at each file that it removes, and continues if the file is different, such as the draft of an entry.
    """

    def between_plan_and_job(drivers: Drivers, driver: Driver, log: Path) -> None:
        files = rows_files(drivers)
        with Tracer(log, Injection("unlink", "signal=SIGSTOP", when="2+"), [driver.run_thread], follow=False) as tracer:
            wait_until(lambda: stands_at(driver, tracer, "/pyspark-"), "the file of the bins")
            os.kill(driver.process.pid, signal.SIGKILL)
            wait_until(lambda: not driver.lives, "the kill")
        assert "/pyspark-" in tracer.lines[-1]
        assert "killed by SIGKILL" in tracer.text
        assert rows_files(drivers) - files <= set(named_files(drivers.folders.table))

    killed_thrice(between_plan_and_job)


@pytest.mark.fault("F02", "F11")
def test_while_tasks_read_and_fold(killed_thrice: Callable[[Fault], None]) -> None:
    """A worker is stopped when it opens the hot copy of its state, after it decoded a first message."""

    def while_folding(drivers: Drivers, driver: Driver, log: Path) -> None:
        files = rows_files(drivers)
        lock = next((drivers.root / "local").rglob("*.lock"))
        stopped_worker_then_kill(driver, Injection("pwrite64", "signal=SIGSTOP", lock), log)
        uncommitted = rows_files(drivers) - files - set(named_files(drivers.folders.table))
        assert len(uncommitted) < PARTITIONS  # a task of the other partition may have written its file

    killed_thrice(while_folding)


@pytest.mark.fault("F03")
def test_after_the_files_are_written_before_the_commit(killed_thrice: Callable[[Fault], None]) -> None:
    """Rows, state and ledger file are written and synced; the ledger's folder is being synced."""

    def before_commit(drivers: Drivers, driver: Driver, log: Path) -> None:
        kill_at(driver, Injection("fsync", KILL, drivers.folders.ledger), log)
        orphans = rows_files(drivers) - set(named_files(drivers.folders.table))
        assert orphans

    killed_thrice(before_commit)


@pytest.mark.fault("F04")
def test_inside_the_commit(killed_thrice: Callable[[Fault], None]) -> None:
    """The log entry is written under a temporary name, and is about to be linked to its final name."""

    def inside_commit(drivers: Drivers, driver: Driver, log: Path) -> None:
        entry = entry_after(drivers.folders.table, more=3)
        kill_at(driver, Injection("link", KILL, entry), log)
        assert not entry.exists()
        assert list(entry.parent.glob(f".{entry.name}.*.tmp"))

    killed_thrice(inside_commit)


@pytest.mark.fault("F05")
def test_after_the_commit_before_the_side_tables(killed_thrice: Callable[[Fault], None]) -> None:
    """The entry of the output table exists; the entry of the ledger is about to be linked."""

    def before_side_tables(drivers: Drivers, driver: Driver, log: Path) -> None:
        entry = entry_after(drivers.folders.ledger, more=3)
        kill_at(driver, Injection("link", KILL, entry), log)
        assert not entry.exists()
        assert newest(drivers)["ledger"]["path"] not in named_files(drivers.folders.ledger)

    killed_thrice(before_side_tables)


@pytest.mark.fault("F06")
def test_between_two_side_tables(killed_thrice: Callable[[Fault], None]) -> None:
    """The ledger contains the batch, the quarantine not yet."""

    def between_side_tables(drivers: Drivers, driver: Driver, log: Path) -> None:
        entry = entry_after(drivers.folders.quarantine, more=3)
        kill_at(driver, Injection("link", KILL, entry), log)
        assert not entry.exists()
        assert newest(drivers)["ledger"]["path"] in named_files(drivers.folders.ledger)
        missing = {file["path"] for file in newest(drivers)["quarantine"]["files"]}
        assert not missing & set(named_files(drivers.folders.quarantine))

    killed_thrice(between_side_tables)


@pytest.mark.fault("F07")
@pytest.mark.parametrize("step", ["the checkpoint's file", "the pointer to it"])
def test_during_a_log_checkpoint(killed_thrice: Callable[[Fault], None], step: str) -> None:
    """Its file, or the pointer to it, is written under another name, and is about to be renamed."""

    def inside_checkpoint(drivers: Drivers, driver: Driver, log: Path) -> None:
        folder = drivers.folders.table / "_delta_log"
        version = (drivers.version // 20 + 1) * 20
        target = folder / (f"{version:020d}.checkpoint.parquet" if step.endswith("file") else "_last_checkpoint")
        before = target.read_bytes() if target.exists() else None
        left = len(list(folder.glob(f"{target.name}#*")))  # of drivers killed here before; delta-rs continues the count
        old_name = target.with_name(f"{target.name}#{left + 1}")  # strace checks only the first name
        kill_at(driver, Injection("rename", KILL, old_name), log)
        assert (target.read_bytes() if target.exists() else None) == before

    killed_thrice(inside_checkpoint)


@pytest.mark.fault("F07")
def test_while_a_state_base_is_written(killed_thrice: Callable[[Fault], None]) -> None:
    """The file that contains a new base is written, and its folder is about to be synced."""

    def base_half_durable(drivers: Drivers, driver: Driver, log: Path) -> None:
        before = set(drivers.folders.state.iterdir())
        stopped_worker_then_kill(driver, Injection("fsync", "signal=SIGSTOP", drivers.folders.state), log)
        assert newest_is_base(set(drivers.folders.state.iterdir()) - before)

    killed_thrice(base_half_durable)


def kill_at(driver: Driver, injection: Injection, log: Path) -> None:
    """Let strace kill the driver at the call."""
    with Tracer(log, injection, [driver.process.pid]) as tracer:
        wait_until(lambda: not driver.lives, f"the kill at {injection}; it says {driver.said[-500:]}")
    assert tracer.lines
    assert "killed by SIGKILL" in tracer.text


def stopped_worker_then_kill(driver: Driver, injection: Injection, log: Path) -> None:
    """Stop a worker at the call, kill the driver, and let the orphaned worker continue."""
    workers = driver.workers()
    with Tracer(log, injection, workers) as tracer:
        tracer.wait_for_call()
        wait_until(lambda: "stopped by SIGSTOP" in tracer.text, "the stop of a worker")
        driver.kill()
    for worker in workers:
        wake(worker)


def wake(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # it died with its daemon


def rows_files(drivers: Drivers) -> set[str]:
    table = drivers.folders.table
    return {str(path.relative_to(table)) for path in table.glob("commit_hour=*/*.parquet")}


def entry_after(table: Path, more: int) -> Path:
    """Return the path of the log entry `more` commits from now."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    return table / "_delta_log" / f"{int(entries[-1].stem) + more:020d}.json"


def newest(drivers: Drivers) -> dict[str, Any]:
    return heads(drivers.folders.table)[-1]


def stands_at(driver: Driver, tracer: Tracer, path: str) -> bool:
    """Whether the driver is stopped at a call with this path; if it is stopped at another call, let it continue."""
    if not tracer.text.endswith("--- stopped by SIGSTOP ---\n"):
        return False
    if path in tracer.lines[-1]:
        return True
    os.kill(driver.process.pid, signal.SIGCONT)
    return False
