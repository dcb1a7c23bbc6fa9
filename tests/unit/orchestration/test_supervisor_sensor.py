"""The supervisor's sensor on a real Dagster instance, with a real table and real liveness files."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    Definitions,
    RunsFilter,
    build_sensor_context,
    validate_run_config,
)

from assets.order_books import order_books
from jobs.streaming import streaming_job
from lockstep.control.handover import StopRequest, reserve_start
from lockstep.control.heartbeat import (
    POLLS,
    RUN_FILE,
    Heartbeat,
    RunHeartbeat,
    read_run_heartbeats,
    read_this_process,
    run_heartbeat,
)
from lockstep.control.start_request import read_start_request, record_start_request
from lockstep.errors import LockstepError
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.lifecycle import stop_stream
from lockstep.operations.stream_table import NoTable
from lockstep.orchestration.definitions import make_stream_assets
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    CAUSE_TAG,
    DESIRED_VERSION_TAG,
    EPOCH_TAG,
    OUTCOME_TAG,
    PARENT_RUN_TAG,
    RETRY_NUMBER_TAG,
    START_REQUEST_TAG,
)
from lockstep.orchestration.shared_tick import SharedCursor
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.orchestration.starts import find_starting_runs
from lockstep.orchestration.supervisor_policy import POLL_SECONDS_MIN, SupervisorCursor
from lockstep.orchestration.table_asset import find_launch
from lockstep.settings import KafkaSettings, Settings
from lockstep.storage import find_storage
from lockstep.table.commit import OutputLog, commit_claim
from lockstep.table.create import open_tables
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders
from sensors.supervisor import supervisor_sensor
from tests.support.queued_run import enqueue
from tests.support.shared_ticks import read_own, share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import DagsterRun, SensorExecutionData


class Supervised:
    """A stream with its supervisor, on a separate instance."""

    def __init__(self, root: Path, instance: DagsterInstance, *others: str) -> None:
        # Supervision never asks Kafka; a start that fails because Kafka is away reports it.
        settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=root / "tables")
        self.settings = settings
        self.streams = streams = [order_books, *(dataclasses.replace(order_books, name=name) for name in others)]
        jobs = [streaming_job(stream) for stream in streams]
        settings.table_root.mkdir()
        self.instance, self.sensor = instance, supervisor_sensor(streams, jobs, settings)
        self.folders = StreamFolders("order_books", settings.table_root)
        self.definitions = Definitions(
            assets=[asset for stream in streams for asset in make_stream_assets(stream, settings, owners=())],
            jobs=jobs,
            sensors=[self.sensor],
            resources={"spark": SparkResource()},
        )
        self.cursor: str | None = None

    def claim(self, desired: Desired = Desired.RUNNING, stream: str = "order_books") -> OutputLog:
        """Make the tables and claim them, as a first run does."""
        output = open_tables(
            StreamFolders(stream, self.folders.root), make_table_schema(order_books.types.row), "a cluster"
        )
        output.commit(commit_claim(output.base().head.epoch, output.table_id, lambda _: None, desired=desired))
        return output

    @property
    def head(self) -> Head:
        return OutputLog(self.folders.table).base().head

    def look(self, cursor: str | None = None) -> SensorExecutionData:
        """Evaluate the sensor once, as the daemon does some seconds after the previous evaluation."""
        repository = self.definitions.get_repository_def()
        context = build_sensor_context(
            instance=self.instance, cursor=_aged(cursor or self.cursor), repository_def=repository
        )
        data = self.sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return data

    def looks(self, number: int = POLLS) -> list[SensorExecutionData]:
        return [self.look() for _ in range(number)]

    def run(self, status: DagsterRunStatus, tags: dict[str, str] | None = None) -> DagsterRun:
        job = self.definitions.resolve_job_def("order_books_stream")
        return self.instance.create_run_for_job(job, status=status, tags=tags)

    def status(self, run: DagsterRun) -> DagsterRunStatus:
        now = self.instance.get_run_by_id(run.run_id)
        assert now is not None
        return now.status

    def dead_file(self, run: DagsterRun) -> None:
        """Write the liveness file of a run that was killed."""
        find_storage(self.folders.control).replace(
            self.folders.control / f"{run.run_id}{RUN_FILE}", msgspec.json.encode(RunHeartbeat(counter=9))
        )

    def dead_writer(self, run: DagsterRun, epoch: int = 1) -> None:
        """Write the liveness file of a writer that was killed."""
        Heartbeat(self.folders.control, epoch, never_ending=True, run_id=run.run_id)._write(9)  # noqa: SLF001


def _aged(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    shared, warning = SharedCursor.read(cursor)
    assert warning == ""
    aged = {name: _older(text) for name, text in shared.streams.items()}
    return SharedCursor.of(aged, shared.first).encode()


def _older(cursor: str) -> str:
    held, warning = SupervisorCursor.read(cursor)
    assert warning == ""
    return msgspec.structs.replace(held, looked_at=held.looked_at - POLL_SECONDS_MIN).encode()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Supervised(tmp_path, instance)


def requests(looks: list[SensorExecutionData]) -> list[int]:
    return [len(look.run_requests or []) for look in looks]


def test_the_supervisor_is_on_by_default(supervised: Supervised) -> None:
    assert supervised.sensor.default_status is DefaultSensorStatus.RUNNING


def test_a_stream_that_is_to_be_running_gets_a_never_ending_run_that_can_be_launched(supervised: Supervised) -> None:
    supervised.claim()
    looks = supervised.looks()
    assert requests(looks) == [0, 0, 1]
    (request,) = looks[-1].run_requests or []
    assert request.run_key == f"order_books-{supervised.head.table_id[:8]}-1-supervisor-0"
    tags = {tag: request.tags[tag] for tag in (CAUSE_TAG, AUTOMATIC_TAG, EPOCH_TAG)}
    assert tags == {CAUSE_TAG: "supervisor: epoch 1 has no writer", AUTOMATIC_TAG: "supervisor", EPOCH_TAG: "1"}
    config = validate_run_config(supervised.definitions.resolve_job_def("order_books_stream"), request.run_config)
    assert config["ops"]["order_books__table"]["config"]["available_now"] is False


@pytest.mark.parametrize("desired", [Desired.STOPPED, Desired.HELD, Desired.BOUNDED])
def test_no_other_desired_state_starts_anything(supervised: Supervised, desired: Desired) -> None:
    supervised.claim(desired)
    looks = supervised.looks(2 * POLLS)
    assert requests(looks) == [0] * 2 * POLLS
    assert f"is {desired.value}" in str(looks[-1].skip_message)


def test_of_two_ticks_that_decide_the_same_only_one_asks_for_a_run(supervised: Supervised) -> None:
    """Two daemons that share a cursor, or two instances that share a table."""
    supervised.claim()
    before = supervised.looks(POLLS - 1)[-1].cursor
    first, second = (supervised.look(before) for _ in range(2))
    assert requests([first, second]) == [1, 0]
    assert "another evaluation has asked for this start" in str(second.skip_message)
    assert requests([supervised.look(second.cursor)]) == [0]  # it waits as if the start was its own


def test_a_start_whose_run_never_came_is_asked_for_again_under_another_key(supervised: Supervised) -> None:
    """The code server was killed between the reservation and the launch."""
    supervised.claim()
    supervised.looks()
    cursor, _ = SupervisorCursor.read(read_own(supervised.cursor))
    later = msgspec.structs.replace(cursor, asked_at=cursor.asked_at - 60, looked_at=cursor.looked_at - 60)
    (request,) = supervised.look(share(later.encode())).run_requests or []
    assert (request.run_key or "").endswith("-1-supervisor-1")


def test_a_sensor_that_forgot_its_cursor_starts_at_once_after_the_starts_before(supervised: Supervised) -> None:
    """DAGSTER_HOME was lost, or the cursor reset, after starts that all failed before their claim."""
    supervised.claim()
    assert [reserve_start(supervised.folders.control, 1, attempt) for attempt in range(24)] == list(range(24))
    looks = supervised.looks()
    assert requests(looks) == [0, 0, 1]
    (request,) = looks[-1].run_requests or []
    assert (request.run_key or "").endswith("-1-supervisor-24")
    assert SupervisorCursor.read(read_own(supervised.cursor))[0].attempt == 25


def test_reservations_of_epochs_that_have_passed_are_removed(supervised: Supervised) -> None:
    supervised.claim()
    supervised.looks()
    supervised.claim()
    supervised.cursor = None
    supervised.looks()
    assert [path.name for path in supervised.folders.control.glob("start*")] == ["start0-2.json"]


def test_a_run_that_dagster_shows_as_started_though_it_was_killed_is_failed_and_replaced(
    supervised: Supervised,
) -> None:
    supervised.claim()
    run = supervised.run(DagsterRunStatus.STARTED)
    supervised.dead_file(run)
    supervised.dead_writer(run)
    looks = supervised.looks()
    assert requests(looks) == [0, 0, 1]
    assert supervised.status(run) is DagsterRunStatus.FAILURE
    assert read_run_heartbeats(supervised.folders.control) == {}
    (request,) = looks[-1].run_requests or []
    assert request.tags[CAUSE_TAG] == f"supervisor: the writer of epoch 1 is gone (run {run.run_id[:8]}: STARTED)"


def test_a_dead_run_of_a_stopped_stream_is_closed_too(supervised: Supervised) -> None:
    supervised.claim(Desired.STOPPED)
    run = supervised.run(DagsterRunStatus.STARTED)
    supervised.dead_file(run)
    supervised.looks()
    assert supervised.status(run) is DagsterRunStatus.FAILURE
    closed = supervised.instance.get_run_by_id(run.run_id)
    assert closed is not None
    assert closed.tags[OUTCOME_TAG] == "lost"


def test_a_run_whose_process_is_there_is_not_closed_though_it_does_not_count(supervised: Supervised) -> None:
    supervised.claim()
    run = supervised.run(DagsterRunStatus.STARTED)
    suspended = msgspec.json.encode(RunHeartbeat(9, read_this_process()))
    find_storage(supervised.folders.control).replace(supervised.folders.control / f"{run.run_id}{RUN_FILE}", suspended)
    assert requests(supervised.looks()) == [0, 0, 1]
    assert supervised.status(run) is DagsterRunStatus.STARTED


@pytest.mark.parametrize("status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
def test_a_run_that_is_on_its_way_is_waited_for(supervised: Supervised, status: DagsterRunStatus) -> None:
    supervised.claim()
    run = supervised.run(status)
    looks = supervised.looks(2 * POLLS)
    assert requests(looks) == [0] * 2 * POLLS
    assert run.run_id[:8] in str(looks[-1].skip_message)


def test_a_run_outside_of_dagster_that_counts_is_waited_for(supervised: Supervised) -> None:
    supervised.claim()
    with run_heartbeat(supervised.folders.control, "lockstep"):
        counted = read_run_heartbeats(supervised.folders.control)["lockstep"]
        for _ in range(2 * POLLS):
            find_storage(supervised.folders.control).replace(
                supervised.folders.control / f"lockstep{RUN_FILE}", msgspec.json.encode(counted)
            )
            counted = msgspec.structs.replace(counted, counter=counted.counter + 1_000)
            assert requests([supervised.look()]) == [0]


@pytest.mark.parametrize("told", [DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE])
def test_a_person_who_terminates_a_run_that_dies_over_it_has_stopped_the_stream(
    supervised: Supervised, told: DagsterRunStatus
) -> None:
    supervised.claim()
    run = supervised.run(DagsterRunStatus.STARTED)
    supervised.dead_file(run)
    supervised.dead_writer(run)
    supervised.instance.report_run_canceling(run)
    if told is DagsterRunStatus.CANCELED:
        supervised.instance.report_run_canceled(run)
    elif told is DagsterRunStatus.FAILURE:
        supervised.instance.report_run_failed(run)
    looks = supervised.looks(2 * POLLS)
    assert requests(looks) == [0] * 2 * POLLS
    assert (supervised.head.desired, supervised.head.reason) == (
        Desired.STOPPED,
        f"terminated in Dagster (run {run.run_id[:8]})",
    )
    assert supervised.status(run) in {DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE}


@pytest.mark.parametrize("asked_by", ["supervisor", "lockstep start"])
def test_a_person_who_terminates_a_start_before_it_claims_has_stopped_the_stream(
    supervised: Supervised, asked_by: str
) -> None:
    supervised.claim()
    run = supervised.run(DagsterRunStatus.NOT_STARTED, tags={AUTOMATIC_TAG: asked_by, EPOCH_TAG: "1"})
    supervised.instance.report_run_canceled(run)
    assert requests(supervised.looks()) == [0] * POLLS
    assert supervised.head.desired is Desired.STOPPED


def test_a_person_who_terminates_the_retry_of_a_run_by_hand_has_stopped_the_stream(supervised: Supervised) -> None:
    """It had not started: it was not a writer, and no sensor had requested it."""
    supervised.claim()
    run = supervised.run(DagsterRunStatus.FAILURE)
    supervised.dead_writer(run)
    tags = {PARENT_RUN_TAG: run.run_id, RETRY_NUMBER_TAG: "1"}
    retry = supervised.run(DagsterRunStatus.NOT_STARTED, tags=tags)
    assert requests(supervised.looks()) == [0] * POLLS
    supervised.instance.report_run_canceled(retry)
    assert requests(supervised.looks()) == [0] * POLLS
    assert supervised.head.desired is Desired.STOPPED


def test_a_handover_that_a_person_terminated_does_not_stop_the_stream_later(supervised: Supervised) -> None:
    """The writer continued; when it dies, it is started again."""
    supervised.claim()
    successor = supervised.run(DagsterRunStatus.NOT_STARTED, tags={AUTOMATIC_TAG: "topics sensor", EPOCH_TAG: "1"})
    supervised.instance.report_run_canceled(successor)
    assert requests(supervised.looks()) == [0, 0, 1]


def test_a_start_after_a_terminated_one_is_not_taken_back(supervised: Supervised) -> None:
    """`lockstep start` claims, so the terminated run belongs to an epoch that has passed."""
    supervised.claim()
    run = supervised.run(DagsterRunStatus.STARTED)
    supervised.dead_writer(run)
    supervised.instance.report_run_canceled(run)
    supervised.claim()
    assert requests(supervised.looks()) == [0, 0, 1]
    assert supervised.head.desired is Desired.RUNNING


def test_a_table_that_cannot_be_read_is_said_and_keeps_the_cursor(supervised: Supervised) -> None:
    supervised.claim()
    supervised.look()
    newest = max((supervised.folders.table / "_delta_log").glob("*.json"))
    newest.write_text("")
    before = supervised.cursor
    data = supervised.look()
    assert "00000000000000000001.json is empty or cut" in str(data.skip_message)
    assert data.cursor == _aged(before)


def test_after_a_reboot_few_streams_start_at_once_and_the_next_when_one_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start keeps a core busy for a while: all together, they would exceed the time for a start."""
    monkeypatch.setattr("lockstep.orchestration.supervisor_sensor.STARTS_MAX", 2)
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        supervised = Supervised(tmp_path, instance, "b", "c")
        for stream in ("order_books", "b", "c"):
            supervised.claim(stream=stream)
        *_, last = supervised.looks()
        assert [request.job_name for request in last.run_requests or ()] == ["order_books_stream", "b_stream"]
        run = supervised.run(DagsterRunStatus.STARTED)
        waits, starts = supervised.looks(2)
        assert waits.run_requests == []
        assert "c: waits until fewer other streams start" in str(waits.skip_message)
        assert [request.job_name for request in starts.run_requests or ()] == ["c_stream"]  # the run of b never started
        assert supervised.status(run) is DagsterRunStatus.STARTED


def test_a_stream_without_a_table_that_an_operator_wants_is_started_until_it_is_terminated(
    supervised: Supervised,
) -> None:
    """Its start request records that it should run, even if its first run fails before its claim."""
    assert requests(supervised.looks()) == [0, 0, 0]
    wanted = record_start_request(supervised.folders, "lockstep start (me)", 0)
    (request,) = [each for look in supervised.looks() for each in look.run_requests or ()]
    assert request.tags[START_REQUEST_TAG] == wanted.request_id
    assert request.tags[DESIRED_VERSION_TAG] == "0"
    assert AUTOMATIC_TAG not in request.tags
    assert find_launch(supervised.run(DagsterRunStatus.STARTED, dict(request.tags))).desires(never_ending=True) is (
        Desired.RUNNING
    )
    terminated = supervised.run(DagsterRunStatus.CANCELED, dict(request.tags))
    supervised.instance.report_run_canceling(terminated)
    supervised.instance.report_run_canceled(terminated)
    for run in supervised.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED])):
        supervised.instance.report_run_failed(run)
    assert requests(supervised.looks(2 * POLLS)) == [0] * 2 * POLLS
    assert read_start_request(supervised.folders, None) is None


def test_a_claim_fulfils_a_request_and_a_stop_supersedes_it(supervised: Supervised) -> None:
    record_start_request(supervised.folders, "lockstep start (me)", 0)
    supervised.claim(Desired.RUNNING)
    assert read_start_request(supervised.folders, supervised.head) is None
    record_start_request(supervised.folders, "lockstep start (me)", 0)
    supervised.claim(Desired.STOPPED)
    assert requests(supervised.looks(2 * POLLS)) == [0] * 2 * POLLS


def test_a_bounded_stream_that_an_operator_wants_to_go_on_is_started(supervised: Supervised) -> None:
    output = supervised.claim(Desired.RUNNING)
    output.commit(commit_claim(1, output.table_id, lambda _: None, desired=Desired.BOUNDED))
    record_start_request(supervised.folders, "lockstep start (me)", supervised.head.desired_version)
    assert requests(supervised.looks()) == [0, 0, 1]


def test_a_stop_without_a_table_withdraws_the_request(supervised: Supervised) -> None:
    request = StopRequest("enough", "me", Desired.STOPPED)
    with pytest.raises(NoTable):
        stop_stream(supervised.folders, request, patience_seconds=0)
    record_start_request(supervised.folders, "lockstep start (me)", 0)
    stopped = stop_stream(supervised.folders, request, patience_seconds=0)
    assert (stopped.desired, stopped.ended_by, stopped.batch) == ("stopped", "none", 0)
    assert requests(supervised.looks(2 * POLLS)) == [0] * 2 * POLLS


def test_a_stop_while_the_first_run_is_on_its_way_says_so(supervised: Supervised) -> None:
    record_start_request(supervised.folders, "lockstep start (me)", 0)
    with (
        run_heartbeat(supervised.folders.control, "a run"),
        pytest.raises(LockstepError, match="the first run of stream order_books is on its way"),
    ):
        stop_stream(supervised.folders, StopRequest("enough", "me", Desired.STOPPED), patience_seconds=0)
    assert read_start_request(supervised.folders, None) is None


@pytest.mark.parametrize("status", [DagsterRunStatus.QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
def test_a_run_that_does_not_write_yet_is_a_start_under_way(supervised: Supervised, status: DagsterRunStatus) -> None:
    """If a run that loads Spark did not count, the topics sensor would launch a second run."""
    supervised.claim()
    run = enqueue(supervised.instance, "order_books_stream") if status.name == "QUEUED" else supervised.run(status)

    def starting() -> dict[str, str]:
        return find_starting_runs([order_books], supervised.folders.root, supervised.instance)

    assert starting() == {"order_books": run.run_id}
    with Heartbeat(supervised.folders.control, 1, never_ending=True, run_id=run.run_id):
        assert starting() == ({} if status is DagsterRunStatus.STARTED else {"order_books": run.run_id})
