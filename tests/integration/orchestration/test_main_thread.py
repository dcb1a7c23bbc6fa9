"""Work off the main thread: it can always be ended, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from tests.support.installation import wait_until

ROOT = Path(__file__).parents[3]


def nothing() -> None:
    """Do nothing, as a tick or an abandonment."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_a_stop_and_the_work_ends_by_itself(number: signal.Signals) -> None:
    stopping = StopSignal()
    before = signal.getsignal(number)

    def work() -> bool:
        os.kill(os.getpid(), number)
        return stopping.wanted.wait(60)

    assert run_off_main_thread(work, stopping, patience_seconds=60, tick=nothing, abandon=nothing)
    assert stopping.reason == number.name
    assert signal.getsignal(number) is before


def test_work_that_does_not_listen_is_abandoned_after_its_patience() -> None:
    stopping = StopSignal()
    abandoned = threading.Event()
    end = threading.Event()
    stopping.ask("somebody")
    with pytest.raises(StopTimeout, match="somebody"):
        run_off_main_thread(lambda: end.wait(60), stopping, patience_seconds=0.1, tick=nothing, abandon=abandoned.set)
    assert abandoned.is_set()
    end.set()


def test_the_work_runs_off_the_main_thread_while_the_main_thread_ticks() -> None:
    ticks: list[threading.Thread] = []
    ticked = threading.Event()

    def tick() -> None:
        ticks.append(threading.current_thread())
        ticked.set()

    def work() -> threading.Thread:
        assert ticked.wait(60)
        return threading.current_thread()

    worker = run_off_main_thread(work, StopSignal(), patience_seconds=1, tick=tick, abandon=nothing)
    assert worker is not threading.main_thread()
    assert set(ticks) == {threading.main_thread()}


def test_an_error_of_the_work_is_raised_where_it_is_waited_for() -> None:
    def work() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        run_off_main_thread(work, StopSignal(), patience_seconds=1, tick=nothing, abandon=nothing)


STUCK = """
import os, sys, time
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.orchestration.spark_resource import SparkResource

os.environ.update(LOCKSTEP_SPARK__MASTER="local[1,3]", LOCKSTEP_SPARK__DRIVER_MEMORY="512m")
spark = SparkResource()

def work():
    context = spark.session("stuck").sparkContext
    def sleep(_):
        open(sys.argv[1], "w").close()
        time.sleep(600)
    context.parallelize([0], 1).foreach(sleep)

try:
    run_off_main_thread(work, StopSignal(), patience_seconds=1, tick=lambda: None, abandon=spark.cancel)
except StopTimeout as abandoned:
    print("abandoned", abandoned)
spark.teardown_after_execution(None)
"""


@pytest.mark.slow
def test_a_spark_job_that_hangs_in_a_worker_is_abandoned_and_leaves_no_process(tmp_path: Path) -> None:
    began = tmp_path / "began"
    script = tmp_path / "stuck.py"
    script.write_text(STUCK.replace("sys.argv[1]", repr(str(began))))
    process = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: began.exists() or process.poll() is not None, "the worker hangs")
        family = psutil.Process(process.pid).children(recursive=True)
        assert {"java", "python"} <= {child.name().rstrip("0123456789.") for child in family}
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said.strip() == "abandoned SIGTERM"
    wait_until(lambda: not any(child.is_running() for child in family), "no process is left", seconds=30)
