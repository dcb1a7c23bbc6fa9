"""A stream run by Dagster's own command line: real processes, a real Kafka, a real table."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun
from deltalake import DeltaTable

from lockstep.declare.rules import BUILT_IN
from lockstep.orchestration.names import OUTCOME_TAG
from tests.support.installation import Installation, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TABLE = AssetKey(["order_books", "table"])


@pytest.fixture
def read(installation: Installation) -> Installation:
    """An installation whose stream has read a first topic."""
    if installation.position("first") < 0:
        installation.produce("first", 0, 500)
        run = installation.materialize(available_now=True)
        assert run.wait() == 0, run.said()
    return installation


def runs_of(installation: Installation, home: str) -> list[DagsterRun]:
    """Return the runs that a Dagster home knows, newest first."""
    with DagsterInstance.from_config(str(installation.folder / home / "dagster")) as instance:
        return list(instance.get_runs())


def test_a_run_of_what_is_there_commits_it_all_and_tells_dagster(read: Installation) -> None:
    assert read.position("first") == 500
    with DagsterInstance.from_config(str(read.folder / "home" / "dagster")) as instance:
        event = instance.get_latest_materialization_event(TABLE)
    assert event is not None
    assert event.asset_materialization is not None
    numbers = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    rows = DeltaTable(read.folders.table).to_pyarrow_dataset().count_rows()
    assert (numbers["run_messages"], numbers["run_rows"], numbers["outcome"]) == (
        500,
        rows,
        "all that was available is committed",
    )


def test_materialize_reads_what_is_there_runs_the_checks_and_ends(read: Installation) -> None:
    """The button on the asset's page does the same: without configuration, and with the checks."""
    read.produce("clicked", 0, 100)
    desired = read.head().desired
    run = read.start("asset", "materialize", "--select", "order_books/table")
    assert run.wait() == 0, run.said()
    assert (read.position("clicked"), read.head().desired) == (100, desired)
    with read.dagster() as instance:
        (ended, *_) = instance.get_runs()
        checked = instance.get_records_for_run(ended.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION).records
    assert len(checked) >= len(BUILT_IN)


@pytest.fixture
def never_ending(read: Installation) -> Iterator[Installation]:
    """An installation with a writing never-ending run."""
    epoch = read.epoch() + 1
    run = read.materialize(available_now=False)
    wait_until(lambda: read.writes(epoch) or run.process.poll() is not None, "the first run writes")
    assert read.writes(epoch), run.said()
    yield read
    for each in read.runs:
        each.process.kill()
        each.process.wait()


def test_a_second_run_of_another_home_takes_over_and_a_signal_ends_it_without_a_trace(
    never_ending: Installation,
) -> None:
    first = never_ending.runs[-1]
    epoch = never_ending.epoch()

    second = never_ending.materialize(available_now=False, home="other")
    assert first.wait() == 0, first.said()
    assert runs_of(never_ending, "home")[0].tags[OUTCOME_TAG] == "handed over"
    wait_until(lambda: never_ending.writes(epoch + 1), "the second run writes")

    # A bounded run leaves the table to the second run, succeeds, and states how to hand over.
    third = never_ending.materialize(available_now=True, home="third")
    assert third.wait() == 0, third.said()
    assert "launch the job order_books_stream" in third.said()
    with DagsterInstance.from_config(str(never_ending.folder / "third" / "dagster")) as instance:
        event = instance.get_latest_materialization_event(TABLE)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["live_run"].value == (
        "of a host, of a command line or of another Dagster instance"
    )

    never_ending.produce("first", 500, 600)
    wait_until(lambda: never_ending.position("first") == 600, "the second run commits")
    assert never_ending.epoch() == epoch + 1

    second.look()
    assert any("java" in child.name() for child in second.family.values())
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() != 0
    wait_until(second.all_gone, "no process is left", seconds=30)
    assert "SIGTERM" in second.said()
    assert runs_of(never_ending, "other")[0].tags[OUTCOME_TAG] == "stopped"


def test_a_never_ending_run_is_refused_where_nobody_could_see_it(read: Installation) -> None:
    run = read.materialize(available_now=False, without="DAGSTER_HOME")
    assert run.wait() != 0
    assert "export DAGSTER_HOME" in run.said()
