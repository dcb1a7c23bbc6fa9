"""Functions that few threads call at an interval, and writers that wait for requests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.control.handover import RequestWatch, StopRequest, forget_stop_request, request_stop
from lockstep.control.heartbeat import Heartbeat
from lockstep.control.ticker import Ticker
from lockstep.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 0.01
DEADLINE_SECONDS = 60.0


def wait_until(condition: threading.Event) -> None:
    assert condition.wait(DEADLINE_SECONDS)


def count_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_many_functions_have_few_threads_which_end_with_them() -> None:
    ticker = Ticker("few", SECONDS, 4)
    called = [threading.Event() for _ in range(10)]
    ends = [ticker.add(each.set) for each in called]
    for each in called:
        wait_until(each)
    assert count_threads("few") == 3
    for end in ends:
        end()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count_threads("few"):
        assert time.monotonic() < deadline
        time.sleep(SECONDS)


def test_a_removed_function_is_not_called_again_and_its_removal_waits_for_its_call() -> None:
    ticker = Ticker("one", SECONDS, 4)
    entered = threading.Event()
    calls = list[str]()

    def call_slowly() -> None:
        entered.set()
        time.sleep(5 * SECONDS)
        calls.append("ended")

    end = ticker.add(call_slowly)
    wait_until(entered)
    end()
    ended = len(calls)
    assert ended >= 1
    time.sleep(5 * SECONDS)
    assert len(calls) == ended


def test_a_function_that_is_removed_during_a_round_is_not_called_in_it() -> None:
    ticker = Ticker("round", SECONDS, 4)
    entered = threading.Event()
    goes_on = threading.Event()
    calls = list[str]()

    def block() -> None:
        entered.set()
        goes_on.wait(DEADLINE_SECONDS)

    end_first = ticker.add(block)
    end_second = ticker.add(lambda: calls.append("second"))
    wait_until(entered)
    end_second()
    goes_on.set()
    end_first()
    time.sleep(5 * SECONDS)
    assert calls == []


def test_a_function_that_fails_stops_no_other_function(caplog: pytest.LogCaptureFixture) -> None:
    ticker = Ticker("failing", SECONDS, 4)
    called = threading.Event()

    def fail() -> None:
        raise ValueError

    ends = [ticker.add(fail), ticker.add(called.set)]
    wait_until(called)
    called.clear()
    wait_until(called)
    for end in ends:
        end()
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ValueError}


@pytest.mark.parametrize("by", ["a stop", "a request", "time"])
def test_a_writer_that_waits_is_woken(tmp_path: Path, by: str) -> None:
    stop = threading.Event()
    with Heartbeat(tmp_path, 3) as heartbeat, RequestWatch(heartbeat, stop) as requests:
        began = time.monotonic()
        if by == "a stop":
            stop.set()
        if by == "a request":
            request_stop(tmp_path, 3, StopRequest("why", "who"))
        requests.wait(0.2 if by == "time" else DEADLINE_SECONDS)
        assert time.monotonic() - began < DEADLINE_SECONDS


def test_a_disk_error_wakes_the_writer_which_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning for each poll would be ten log lines a second for each stream."""
    with Heartbeat(tmp_path, 3) as heartbeat, RequestWatch(heartbeat, threading.Event()) as requests:
        polled = threading.Event()

        def fail(_: object, path: Path) -> bool:
            polled.set()
            raise OSError(5, "Input/output error", str(path))

        monkeypatch.setattr(LocalStorage, "exists", fail)
        began = time.monotonic()
        requests.wait(DEADLINE_SECONDS)
        assert polled.is_set()
        assert time.monotonic() - began < DEADLINE_SECONDS
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_request_that_is_withdrawn_does_not_wake_a_writer_again(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, 3) as heartbeat, RequestWatch(heartbeat, threading.Event()) as requests:
        request_stop(tmp_path, 3, StopRequest("why", "who"))
        requests.wait(DEADLINE_SECONDS)
        forget_stop_request(tmp_path, 3)
        requests.wait(0.3)  # an earlier poll may wake it once
        began = time.monotonic()
        requests.wait(0.3)
        assert time.monotonic() - began >= 0.29  # no upper bound is asserted
