"""A stream that lost its integrity stays halted in Dagster, with the evidence, until an operator resumes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus

from lockstep.model.finding import Finding
from lockstep.orchestration.names import OUTCOME_TAG

if TYPE_CHECKING:
    from tests.support.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_broken_stream_fails_with_its_evidence_and_is_not_run_again(installation: Installation) -> None:
    installation.produce("cut", 1, 50)  # without the snapshot that opens the session

    first = installation.materialize(available_now=True)
    assert first.wait() != 0
    second = installation.materialize(available_now=True)
    assert second.wait() != 0

    with DagsterInstance.from_config(str(installation.folder / "home" / "dagster")) as instance:
        runs = instance.get_runs()
        failures = instance.get_records_for_run(runs[-1].run_id, of_type=DagsterEventType.STEP_FAILURE).records
    assert [run.status for run in runs] == [DagsterRunStatus.FAILURE] * 2
    for run in runs:
        assert run.tags[OUTCOME_TAG] == "halted"
        assert run.tags["dagster/max_retries"] == "0"
    event = failures[0].event_log_entry.dagster_event
    assert event is not None
    assert event.step_failure_data.user_failure_data is not None
    evidence = event.step_failure_data.user_failure_data.metadata
    (finding,) = msgspec.convert(evidence["findings"].value, list[Finding])
    assert (finding.topic, finding.partition, finding.offset) == ("order_books.cut", 0, 0)
    assert finding.session is None  # no erasure reaches Dagster's storage
    assert event.step_failure_data.error is None or event.step_failure_data.error.cause is None
    assert "lockstep resume order_books" in str(evidence["next"].value)
    assert installation.epoch() == 1  # the second run did not even claim
