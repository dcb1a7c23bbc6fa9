"""The conditions that `lockstep start` awaits, and its errors without them; on a real instance and a real table."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, DagsterRunStatus, Failure, job, op
from dagster._core.events import EngineEventData
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo
from hypothesis import given
from hypothesis import strategies as st

from assets.order_books import order_books
from lockstep.control.heartbeat import Heartbeat, run_heartbeat
from lockstep.control.start_request import read_start_request
from lockstep.engine.driver.startup import NotWanted, WriterStartup
from lockstep.errors import EnvironmentProblem
from lockstep.integrity.resume_options import StreamHalted
from lockstep.model.finding import Finding
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.lifecycle import set_by_claim
from lockstep.orchestration.launch import (
    DAEMON_SECONDS_MAX,
    QUEUE_DAEMON,
    QUEUE_SECONDS_MAX,
    StartFailed,
    await_writer,
    create_dagster_storage,
    explain_refusal,
    find_daemon_silence,
    find_start_on_its_way,
    judge_daemon_silence,
    start_stream,
)
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    CAUSE_TAG,
    DESIRED_VERSION_TAG,
    EPOCH_TAG,
    NEVER_TOO_LONG,
    NONE,
    OUTCOME_TAG,
    RETRY_NUMBER_TAG,
    SUPERVISOR,
    make_automatic_tags,
)
from lockstep.orchestration.table_asset import find_copied_tags, find_launch, find_request_tag
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.commit import commit_claim
from lockstep.table.create import open_tables
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders
from tests.support.protocol_run import ProtocolRun, anything, folders_in
from tests.support.queued_run import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import DagsterRun


FINDING = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")


@op
def refusing() -> None:
    """Fail as the stream's asset fails."""
    raise Failure("Kafka did not answer within 60 s", allow_retries=False)


@job
def order_books_stream() -> None:
    refusing()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral(tempdir=str(tmp_path_factory.mktemp("instance"))) as made:
        yield made


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return folders_in(tmp_path, "order_books")


@pytest.fixture
def claimed(folders: StreamFolders) -> ProtocolRun:
    run = ProtocolRun(folders)
    run.head = run.output.commit(commit_claim(0, run.output.table_id, anything, desired=Desired.RUNNING)).head
    return run


def made(instance: DagsterInstance, status: DagsterRunStatus, **tags: str) -> DagsterRun:
    return instance.create_run_for_job(order_books_stream, status=status, tags=tags)


def test_a_start_ends_when_its_run_writes(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    run = made(instance, DagsterRunStatus.STARTED)
    with Heartbeat(folders.control, 1, never_ending=True, run_id=run.run_id):
        assert await_writer("order_books", folders, instance, run.run_id) == claimed.head.epoch


QUEUE = {"module": "dagster._core.run_coordinator.queued_run_coordinator", "class": "QueuedRunCoordinator"}


@given(seconds=st.floats(0, 4 * DAEMON_SECONDS_MAX) | st.just(math.inf))
def test_a_slow_daemon_is_waited_for_and_a_silent_one_told_as_silent(seconds: float) -> None:
    """The error about a slow but living daemon must not state that no daemon takes the run."""
    if seconds <= DAEMON_SECONDS_MAX:
        said = judge_daemon_silence("s", "r", seconds)
        assert bool(said) is (seconds >= QUEUE_SECONDS_MAX)
    else:
        with pytest.raises(StartFailed, match=f"daemon did not report within {DAEMON_SECONDS_MAX:g} s") as failed:
            judge_daemon_silence("s", "r", seconds)
        said = str(failed.value)
    assert ("if none runs" in said) is bool(said)
    assert "no daemon" not in said


def test_the_silence_of_a_daemon_is_measured_from_its_last_heartbeat(tmp_path: Path) -> None:
    with DagsterInstance.local_temp(str(tmp_path), overrides={"run_coordinator": QUEUE}) as instance:
        assert find_daemon_silence(instance) == math.inf
        for age in (600.0, 5.0):
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age, QUEUE_DAEMON, "daemon", []))
            assert find_daemon_silence(instance) == pytest.approx(age, abs=2)


def test_a_start_that_finds_no_slot_in_the_queue_says_how_to_make_room(
    tmp_path: Path, claimed: ProtocolRun, folders: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a dagster.yaml, Dagster has ten slots for runs; each stream holds a slot permanently."""
    del claimed
    monkeypatch.setattr("lockstep.orchestration.launch.QUEUE_SECONDS_MAX", -1.0)
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("concurrency: {runs: {max_concurrent_runs: 1}}\n")
    with DagsterInstance.from_config(str(home)) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), QUEUE_DAEMON, "daemon", []))
        made(instance, DagsterRunStatus.STARTED)  # maintenance: it ends, and leaves its slot
        run_id = enqueue(instance, "order_books_stream").run_id
        with pytest.raises(StartFailed, match="did not write within 0 s"):
            await_writer("order_books", folders, instance, run_id, seconds_max=0)
        made(instance, DagsterRunStatus.STARTED, **NEVER_TOO_LONG)
        with pytest.raises(StartFailed, match="streams hold each of the 1 slots of max_concurrent_runs") as failed:
            await_writer("order_books", folders, instance, run_id)
        assert "max_concurrent_runs of dagster.yaml to -1" in failed.value.next_step


def test_a_start_whose_run_failed_says_why(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    del claimed
    run_id = order_books_stream.execute_in_process(instance=instance, raise_on_error=False).run_id
    with pytest.raises(StartFailed, match=f"run {run_id} ended: FAILURE; Kafka did not answer within 60 s") as failed:
        await_writer("order_books", folders, instance, run_id)
    assert (failed.value.stream, failed.value.run_id) == ("order_books", run_id)


def test_a_start_whose_run_was_never_launched_says_why(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    del claimed
    run = made(instance, DagsterRunStatus.STARTING)
    error = SerializableErrorInfo("OSError: no space left on device", stack=[], cls_name="OSError")
    instance.report_engine_event("Caught an error launching the run", run, EngineEventData.engine_error(error))
    instance.report_run_failed(run)
    with pytest.raises(StartFailed, match=f"run {run.run_id} ended: FAILURE; .*no space left on device"):
        await_writer("order_books", folders, instance, run.run_id)


NO_MODULE = """
Usage: python -m dagster job launch [OPTIONS]

Error: Error loading location "lockstep": dagster._core.errors.DagsterImportError: Encountered ImportError

Stack Trace:
  File "site-packages/dagster/_grpc/server.py", line 504, in __init__

The above exception was caused by the following exception:
ModuleNotFoundError: No module named 'pumps'

Stack Trace:
  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed
  File "definitions.py", line 2, in <module>
    import pumps
"""
NO_JOB = """
Usage: python -m dagster job launch [OPTIONS]

Error: Job "order_books_stream" not found in repository "__repository__". Found ['plant_stream'] instead.
"""


def test_a_definition_that_dagster_cannot_load_is_named_by_its_cause() -> None:
    refused = explain_refusal(order_books, NO_MODULE)
    assert refused.problem == "Dagster did not launch the run: ModuleNotFoundError: No module named 'pumps'"
    assert refused.next_step.startswith("dagster definitions validate -w workspace.yaml")


def test_a_stream_that_definitions_do_not_name_is_to_be_added_there() -> None:
    refused = explain_refusal(order_books, NO_JOB)
    assert refused.problem == "Dagster has no job order_books_stream: definitions.py does not name order_books"
    assert refused.next_step.startswith("add order_books to STREAMS of definitions.py, reload the code location")


@pytest.mark.parametrize("status", [DagsterRunStatus.CANCELED, DagsterRunStatus.SUCCESS])
def test_a_start_whose_run_ended_otherwise_says_how(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders, status: DagsterRunStatus
) -> None:
    del claimed
    run = made(instance, status, **{OUTCOME_TAG: "not wanted any more"})
    with pytest.raises(StartFailed, match=f"{status.value}; not wanted any more"):
        await_writer("order_books", folders, instance, run.run_id)


def test_a_run_that_a_start_launched_knows_as_of_when_it_was_wanted(instance: DagsterInstance) -> None:
    assert find_launch(made(instance, DagsterRunStatus.STARTED, **{DESIRED_VERSION_TAG: "7"})).desired_version == 7
    assert find_launch(made(instance, DagsterRunStatus.STARTED)).desired_version is None


def reexecuted(instance: DagsterInstance, original: DagsterRun, **tags: str) -> DagsterRun:
    """Return a re-execution, with the tags that Dagster copies."""
    run_id = original.run_id
    return instance.create_run_for_job(
        order_books_stream, parent_run_id=run_id, root_run_id=run_id, tags={**original.tags, **tags}
    )


def test_a_reexecution_has_no_tags_that_are_true_of_its_original_alone(instance: DagsterInstance) -> None:
    asked = make_automatic_tags(SUPERVISOR, "supervisor: the writer is gone", 7)
    original = made(instance, DagsterRunStatus.FAILURE, **asked, **{OUTCOME_TAG: "lost"})
    assert find_copied_tags(original) == {}

    by_a_person = reexecuted(instance, original)
    assert find_copied_tags(by_a_person) == {
        CAUSE_TAG: f"re-execution of {original.run_id[:8]}",
        **dict.fromkeys((AUTOMATIC_TAG, EPOCH_TAG, OUTCOME_TAG), NONE),
    }

    by_dagster = reexecuted(instance, original, **{RETRY_NUMBER_TAG: "1"})
    assert find_copied_tags(by_dagster) == {OUTCOME_TAG: NONE}
    assert find_launch(by_dagster).automatic


def noted(instance: DagsterInstance, run: DagsterRun, folders: StreamFolders) -> DagsterRun:
    """Return a run after it has corrected its tags, as its step does first."""
    instance.add_run_tags(run.run_id, find_copied_tags(run) | find_request_tag(run, folders))
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def test_a_retry_of_a_reexecution_by_a_person_is_of_the_request_of_that_person(
    instance: DagsterInstance, folders: StreamFolders
) -> None:
    original = made(instance, DagsterRunStatus.FAILURE, **make_automatic_tags(SUPERVISOR, "gone", 7))
    by_a_person = noted(instance, reexecuted(instance, original), folders)
    launch = find_launch(reexecuted(instance, by_a_person, **{RETRY_NUMBER_TAG: "1"}))
    expected = (False, 0, f"re-execution of {original.run_id[:8]}")
    assert (launch.automatic, launch.desired_version, launch.cause) == expected


def test_a_stop_since_a_person_launched_a_run_outlives_the_retry_of_the_run(
    instance: DagsterInstance, folders: StreamFolders
) -> None:
    """A retry that counted as launched by a person set the desired state to running again."""
    output = open_tables(folders, make_table_schema(order_books.types.row), "cluster")
    by_hand = noted(instance, made(instance, DagsterRunStatus.FAILURE), folders)
    output.commit(commit_claim(0, output.table_id, anything, desired=Desired.RUNNING))
    set_by_claim(output, 1, Desired.STOPPED, "maintenance")
    retry = reexecuted(instance, by_hand, **{RETRY_NUMBER_TAG: "1"})
    assert find_request_tag(retry, folders) == {}
    with pytest.raises(NotWanted, match="stopped"):
        WriterStartup(order_books, folders, "cluster", launch=find_launch(retry), never_ending=True)


def test_a_retry_of_a_run_that_never_said_as_of_when_it_was_wanted_is_automatic(instance: DagsterInstance) -> None:
    by_hand = made(instance, DagsterRunStatus.FAILURE)
    launch = find_launch(reexecuted(instance, by_hand, **{RETRY_NUMBER_TAG: "1"}))
    assert launch.automatic
    assert launch.cause.endswith(f", a retry of {by_hand.run_id}")


def test_a_start_that_another_run_forestalled_is_a_start(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    fenced = made(instance, DagsterRunStatus.SUCCESS, **{OUTCOME_TAG: "fenced"})
    with Heartbeat(folders.control, 1, never_ending=True, run_id="another"):
        assert await_writer("order_books", folders, instance, fenced.run_id) == claimed.head.epoch


def test_a_start_of_a_stream_that_halts_at_once_is_the_halt(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    claimed.commit(claimed.prepared(findings=(FINDING,)))
    run = made(instance, DagsterRunStatus.FAILURE)
    with pytest.raises(StreamHalted) as halted:
        await_writer("order_books", folders, instance, run.run_id)
    assert halted.value.findings == (FINDING,)


def test_a_start_that_takes_too_long_says_how_far_it_came(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    del claimed
    run = made(instance, DagsterRunStatus.STARTING)
    with pytest.raises(StartFailed, match=f"run {run.run_id}, which is STARTING, did not write"):
        await_writer("order_books", folders, instance, run.run_id, seconds_max=-1.0)


def test_a_run_that_was_deleted_is_said_to_be_unknown(
    instance: DagsterInstance, claimed: ProtocolRun, folders: StreamFolders
) -> None:
    del claimed
    with pytest.raises(StartFailed, match="Dagster does not know it any more"):
        await_writer("order_books", folders, instance, "4711")


@pytest.mark.parametrize(
    ("asked_by", "found"), [("supervisor", True), ("lockstep start", True), ("topics sensor", False)]
)
def test_a_start_that_is_on_its_way_is_waited_for_and_no_second_one_is_launched(
    instance: DagsterInstance,
    folders: StreamFolders,
    asked_by: str,
    found: bool,  # noqa: FBT001
) -> None:
    run = made(instance, DagsterRunStatus.STARTED, **{AUTOMATIC_TAG: asked_by})
    with run_heartbeat(folders.control, run.run_id):
        assert find_start_on_its_way(order_books, folders, instance) == (run.run_id if found else None)
    instance.delete_run(run.run_id)


def test_a_start_of_before_that_is_dead_is_not_waited_for(instance: DagsterInstance, folders: StreamFolders) -> None:
    run = made(instance, DagsterRunStatus.STARTED, **{AUTOMATIC_TAG: "supervisor"})
    assert find_start_on_its_way(order_books, folders, instance) is None
    instance.delete_run(run.run_id)


def test_a_created_dagster_home_leaves_no_database_to_be_created_by_two_processes_at_once(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    create_dagster_storage(tmp_path)
    databases = set(tmp_path.rglob("*.db"))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.get_runs_count() == 0
        assert instance.all_instigator_state() == []
    assert set(tmp_path.rglob("*.db")) == databases
    assert {path.name for path in databases} == {"runs.db", "index.db", "schedules.db"}


def test_the_request_of_a_first_start_is_recorded_before_anything_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing started the stream again after its first run had failed before its claim."""
    (tmp_path / "workspace.yaml").touch()
    (tmp_path / "dagster").mkdir()
    (tmp_path / "tables").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))

    def refuse(*_: object) -> None:
        raise EnvironmentProblem("Dagster is away", next_step="wait")

    monkeypatch.setattr("lockstep.orchestration.launch.start_job", refuse)
    monkeypatch.setattr("lockstep.orchestration.launch.DagsterInstance.get", DagsterInstance.ephemeral)
    settings = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9"), table_root=tmp_path / "tables")
    with pytest.raises(EnvironmentProblem, match="Dagster is away"):
        start_stream(order_books, settings, tmp_path, who="me")
    request = read_start_request(StreamFolders("order_books", settings.table_root), None)
    assert request is not None
    assert request.cause == "lockstep start (me)"
