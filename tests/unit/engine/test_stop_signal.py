"""The errors of a run that are the result of a requested stop."""

from __future__ import annotations

import pytest

from lockstep.engine.driver.main_thread import StopSignal, StopTimeout
from lockstep.errors import EnvironmentProblem, KafkaError, TableError

OF_SPARK = (
    ConnectionRefusedError("the JVM is gone"),
    EnvironmentProblem("the Python of an executor cannot run tasks", next_step="look"),
)
FOUND = (KafkaError("Kafka is silent", next_step="wait"), TableError("files are missing", next_step="verify"))


@pytest.fixture
def stopping() -> StopSignal:
    stopping = StopSignal()
    stopping.ask("somebody")
    return stopping


@pytest.mark.parametrize("error", OF_SPARK)
def test_what_spark_leaves_when_its_jvm_ends_is_an_error_unless_a_stop_was_wanted(
    error: Exception, stopping: StopSignal
) -> None:
    assert stopping.explains(error)
    assert not StopSignal().explains(error)


@pytest.mark.parametrize("error", FOUND)
def test_what_lockstep_found_is_an_error_though_a_stop_was_wanted(error: Exception, stopping: StopSignal) -> None:
    assert not stopping.explains(error)


def test_a_batch_that_a_stop_did_not_wait_for_is_no_error(stopping: StopSignal) -> None:
    assert stopping.explains(StopTimeout("somebody"))
