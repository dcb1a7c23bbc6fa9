"""The end of Spark if its JVM hangs or is gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # has none
from pyspark import SparkContext

from lockstep.spark import shutdown
from lockstep.spark.shutdown import end_jobs, stop_context

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def context(end: Callable[[], object]) -> Any:
    return SimpleNamespace(cancelAllJobs=end, stop=end)


def test_a_jvm_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "STOP_SECONDS", 0.05)
    answered = threading.Event()
    for end in (end_jobs, stop_context):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
            monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
            end(context(answered.wait))
            assert jvm.wait(20) != 0
    answered.set()


def test_the_jobs_of_one_group_are_ended_alone() -> None:
    ended: list[str] = []
    end_jobs(cast("SparkContext", SimpleNamespace(cancelJobGroup=ended.append)), "one")
    assert ended == ["one"]


def test_a_jvm_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=None))
    end_jobs(context(fail))
    stop_context(context(fail))
