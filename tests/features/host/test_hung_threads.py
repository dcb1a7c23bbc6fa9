"""Hung threads of streams are replaced when they show no sign, up to a limit."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.engine.driver.main_thread import StopSignal
from lockstep.engine.driver.startup import Launch
from lockstep.features.host import keeper
from lockstep.features.host.keeper import HUNG_MAX, HostContext, HostReports, RunEnd, StreamKeeper, compute_hang_seconds
from lockstep.features.host.turns import StartTurns
from lockstep.model.tuning import DEFAULT_TUNING
from lockstep.settings import KafkaSettings, Settings
from tests.features.host.hosted import TRIGGER_SECONDS, make_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANG_SECONDS = 1e-6
"""Shorter than the time since any sign of a thread."""
SECONDS_MAX = 30.0
STREAM = make_stream("topics", 0)


class Storage:
    """A storage whose reads block until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.reads = 0

    def read(self, _: object) -> None:
        self.reads += 1
        self.released.wait(SECONDS_MAX)
        raise OSError("of the old thread")

    def wait_for_reads(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while self.reads < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


class Host(HostReports):
    """The host of one stream.

    Attributes:
        jobs: Runs with a job.
        ended: Runs whose jobs were cancelled.
        ends: Reported ends.
    """

    def __init__(self, root: Path) -> None:
        self.jobs = set[str]()
        self.ended = list[str]()
        self.ends = list[RunEnd]()
        self.stopping = StopSignal()
        self.context = HostContext(
            cause="a test",
            settings=Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=root),
            spark=lambda: pytest.fail("Spark"),
            turns=StartTurns(),
            stopping=self.stopping,
            reports=self,
            tuning=DEFAULT_TUNING,
            fail=lambda error: pytest.fail(str(error)),
            is_spark_alive=lambda: True,
            has_job=self.jobs.__contains__,
            end_jobs=self.ended.append,
        )

    def note_end(self, end: RunEnd) -> None:
        self.ends.append(end)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    made = Storage()
    monkeypatch.setattr(keeper, "try_read_head", made.read)
    monkeypatch.setattr(keeper, "compute_hang_seconds", lambda _: HANG_SECONDS)
    return made


@pytest.fixture
def host(storage: Storage, tmp_path: Path) -> Iterator[Host]:
    """The host, whose threads end before the storage of the test is removed."""
    others = set(threading.enumerate())
    made = Host(tmp_path)
    yield made
    made.stopping.ask("the end of the test")
    storage.released.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()


def test_a_few_hung_threads_of_a_stream_are_replaced_and_end_when_they_return(storage: Storage, host: Host) -> None:
    keepers = [StreamKeeper(STREAM, host.context)]
    keepers[0].start()
    for count in range(1, HUNG_MAX + 1):
        storage.wait_for_reads(count)
        keepers.append(keepers[-1].replace_hung())
        assert keepers[-1] is not keepers[-2]
    storage.wait_for_reads(HUNG_MAX + 1)
    assert keepers[-1].replace_hung() is keepers[-1]
    assert [(end.stream, end.outcome) for end in host.ends] == [(STREAM.name, "failed")] * HUNG_MAX
    storage.released.set()
    assert all(each.has_ended(SECONDS_MAX) for each in keepers[:-1])
    assert len(host.ends) <= HUNG_MAX + 1  # the last thread continues and reports the error of the read


def test_a_thread_hangs_only_without_a_job_and_its_jobs_are_cancelled(storage: Storage, host: Host) -> None:
    waiting = StreamKeeper(STREAM, host.context)
    waiting.start()
    storage.wait_for_reads(1)
    waiting.launch = Launch(run_id="run")
    host.jobs.add("run")
    assert waiting.replace_hung() is waiting
    host.jobs.clear()
    assert waiting.replace_hung() is not waiting
    assert host.ended == ["run"]


def test_no_thread_is_replaced_after_the_stop_of_the_host(storage: Storage, host: Host) -> None:
    waiting = StreamKeeper(STREAM, host.context)
    waiting.start()
    storage.wait_for_reads(1)
    host.stopping.ask("SIGTERM")
    assert waiting.replace_hung() is waiting
    storage.released.set()
    assert waiting.has_ended(SECONDS_MAX)


def test_a_thread_that_has_given_a_sign_lately_is_left_alone(
    storage: Storage, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "compute_hang_seconds", lambda _: SECONDS_MAX)
    waiting = StreamKeeper(STREAM, host.context)
    waiting.start()
    storage.wait_for_reads(1)
    assert waiting.replace_hung() is waiting


def test_a_thread_may_take_twice_the_deadline_of_a_batch_in_addition_to_the_trigger() -> None:
    assert compute_hang_seconds(STREAM) == TRIGGER_SECONDS + 2 * STREAM.limits.batch_seconds
