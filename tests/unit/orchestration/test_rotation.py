"""The daily rotation on a real Dagster instance and a real table: its request of a run, and when it has none."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, DagsterRunStatus, Definitions, build_schedule_context, validate_run_config

from assets.order_books import order_books
from jobs.rotation import rotation_schedules
from jobs.streaming import streaming_job
from lockstep.control.heartbeat import Heartbeat
from lockstep.model.table_schema import make_table_schema
from lockstep.orchestration import rotation
from lockstep.orchestration.definitions import make_stream_assets
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, EPOCH_TAG
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.commit import commit_claim
from lockstep.table.create import open_tables
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import DagsterRun, RunRequest


class Rotated:
    """A stream with its rotation, on a separate instance."""

    def __init__(self, root: Path, instance: DagsterInstance) -> None:
        settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=root / "tables")
        self.instance, self.schedule = instance, rotation_schedules(order_books, settings)[0]
        self.folders = StreamFolders("order_books", settings.table_root)
        self.definitions = Definitions(
            assets=make_stream_assets(order_books, settings, owners=()),
            jobs=[streaming_job(order_books)],
            schedules=[self.schedule],
            resources={"spark": SparkResource()},
        )

    def claim(self, desired: Desired = Desired.RUNNING) -> None:
        """Make the tables and claim them, as a first run does."""
        output = open_tables(self.folders, make_table_schema(order_books.types.row), "a cluster")
        output.commit(commit_claim(output.base().head.epoch, output.table_id, lambda _: None, desired=desired))

    def run(self, status: DagsterRunStatus) -> DagsterRun:
        return self.instance.create_run_for_job(self.definitions.resolve_job_def("order_books_stream"), status=status)

    def write(self, run_id: str, *, never_ending: bool = True) -> None:
        """Write the liveness file of a run that writes."""
        Heartbeat(self.folders.control, 1, never_ending=never_ending, run_id=run_id)._write(9)  # noqa: SLF001

    def tick(self) -> tuple[list[RunRequest], str]:
        """Evaluate one tick of the schedule, as the daemon does."""
        repository = self.definitions.get_repository_def()
        with build_schedule_context(instance=self.instance, repository_def=repository) as context:
            data = self.schedule.evaluate_tick(context)
        return list(data.run_requests or []), data.skip_message or ""


@pytest.fixture
def rotated(tmp_path: Path) -> Iterator[Rotated]:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (tmp_path / "tables").mkdir()
    with DagsterInstance.from_config(str(tmp_path)) as instance:  # a schedule opens it by its reference
        yield Rotated(tmp_path, instance)


def test_a_run_that_is_old_is_handed_over_to_a_never_ending_one(
    rotated: Rotated, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated.claim()
    old = rotated.run(DagsterRunStatus.STARTED)
    rotated.write(old.run_id)
    requests, said = rotated.tick()
    assert requests == []
    assert said.startswith(f"run {old.run_id} is ")

    monkeypatch.setattr(rotation, "ROTATION_AGE_MIN", timedelta(0))
    ((request,), _) = rotated.tick()

    assert old.run_id in str(request.run_key)
    assert (request.tags[AUTOMATIC_TAG], request.tags[EPOCH_TAG]) == ("daily rotation", "1")
    assert request.tags[CAUSE_TAG].startswith("daily rotation of a run of ")
    config = validate_run_config(rotated.definitions.resolve_job_def("order_books_stream"), request.run_config)
    assert config["ops"]["order_books__table"]["config"]["available_now"] is False


def test_nothing_is_rotated_where_no_never_ending_run_of_this_dagster_writes(rotated: Rotated) -> None:
    assert rotated.tick() == ([], "order_books has no table yet")
    rotated.claim()
    assert rotated.tick()[1].startswith("no never-ending run of order_books writes (running")
    rotated.write("a run of `lockstep run`")
    assert rotated.tick() == ([], "the run that writes is none of this Dagster: there is nothing to rotate")
    rotated.write(rotated.run(DagsterRunStatus.STARTED).run_id, never_ending=False)
    assert rotated.tick()[1].startswith("no never-ending run of order_books writes")
    rotated.write(rotated.run(DagsterRunStatus.STARTED).run_id)
    rotated.run(DagsterRunStatus.NOT_STARTED)
    assert rotated.tick() == ([], "a run is on its way")


@pytest.mark.parametrize("desired", [Desired.BOUNDED, Desired.STOPPED, Desired.HELD])
def test_a_stream_that_is_not_to_be_running_is_not_rotated(rotated: Rotated, desired: Desired) -> None:
    rotated.claim(desired)
    rotated.write(rotated.run(DagsterRunStatus.STARTED).run_id)
    assert rotated.tick()[0] == []


def test_each_stream_is_rotated_once_a_day_at_a_minute_of_its_own() -> None:
    from definitions import STREAMS, settings

    crons = [each.cron_schedule for stream in STREAMS for each in rotation_schedules(stream, settings)]
    assert {str(cron).split(" ", 1)[1] for cron in crons} == {"3 * * *"}
    assert len(set(crons)) == len(STREAMS)
