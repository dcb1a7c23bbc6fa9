"""Which errors of an attended run are how a wanted stop ended."""

from __future__ import annotations

import pytest

from lockstep.engine.driver.main_thread import StopSignal
from lockstep.errors import KafkaError, LockstepError
from lockstep.operations.foreground import _is_of_the_stop  # pyright: ignore[reportPrivateUsage]  # a JVM would take a minute


@pytest.mark.parametrize("stopped", [True, False])
def test_what_spark_leaves_when_its_jvm_ends_is_an_error_unless_a_stop_was_wanted(*, stopped: bool) -> None:
    stopping = StopSignal()
    if stopped:
        stopping.wanted.set()
    assert _is_of_the_stop(ConnectionRefusedError("the JVM is gone"), stopping) is stopped


def test_an_error_of_lockstep_is_told_though_a_stop_was_wanted() -> None:
    stopping = StopSignal()
    stopping.wanted.set()
    error: LockstepError = KafkaError("Kafka is silent", next_step="wait")
    assert not _is_of_the_stop(error, stopping)
