"""The health sensor on a real Dagster instance, with real Kafka, tables and webhook."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import (
    AssetCheckKey,
    AssetMaterialization,
    AssetSelection,
    DagsterInstance,
    Definitions,
    build_sensor_context,
    materialize,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from jobs.quality import checks_job
from lockstep import Every
from lockstep.features.health import sensor as watcher
from lockstep.features.health.asset_check import find_newest_materialization, make_health_check
from lockstep.features.health.policy import HealthCursor
from lockstep.features.health.webhook import Notification, NotificationEvent
from lockstep.operations.alarms import AlarmKind, AlarmSeverity
from lockstep.orchestration.definitions import make_stream_assets, make_stream_checks
from lockstep.orchestration.names import HEALTH, MAINTENANCE, make_table_key
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import HealthSettings, KafkaSettings
from sensors.health import health_sensor
from tests.support.feed import ProducerRecord, session, snapshot
from tests.support.shared_ticks import read_own, share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dagster import SensorExecutionData
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

HOUR = 3_600
PASSED = AssetCheckExecutionRecordStatus.SUCCEEDED
FAILED = AssetCheckExecutionRecordStatus.FAILED
VARIABLE = "HEALTH_TEST_WEBHOOK"
CANARY = "canary-42"


class Watched:
    """A stream with its health sensor on a separate instance."""

    def __init__(self, runs: LocalRuns, instance: DagsterInstance, **changed: object) -> None:
        self.runs = runs
        self.instance = instance
        self.cursor = ""
        self.configure(**changed)

    def configure(self, **changed: object) -> None:
        """Change the settings of the sensor, as a reload of the code location does."""
        settings = self.runs.settings.model_copy(update=changed)
        self.sensor = health_sensor([self.runs.stream], [checks_job(self.runs.stream)], settings)
        self.definitions = Definitions(
            assets=make_stream_assets(self.runs.stream, settings, owners=()),
            asset_checks=make_stream_checks(self.runs.stream, settings),
            sensors=[self.sensor],
            resources={"spark": SparkResource()},
        )

    def look(self) -> SensorExecutionData:
        """Evaluate the sensor once and report its events to the instance, as the daemon does."""
        repository = self.definitions.get_repository_def()
        context = build_sensor_context(instance=self.instance, cursor=self.cursor, repository_def=repository)
        tick = self.sensor.evaluate_tick(context)
        for event in tick.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursor = tick.cursor or ""
        return tick

    @property
    def results(self) -> list[AssetCheckExecutionRecord]:
        """Return the results of the check in Dagster, newest first."""
        key = AssetCheckKey(make_table_key(self.runs.stream), HEALTH)
        return list(self.instance.event_log_storage.get_asset_check_execution_history(key, limit=100))

    @property
    def waiting(self) -> int:
        """Return the number of notifications that wait for the webhook."""
        cursor, warning = HealthCursor.read(read_own(self.cursor))
        assert warning == ""
        return len(cursor.waiting)


@pytest.fixture
def watched(feed: Feed, runs: LocalRuns, tmp_path: Path) -> Iterator[Watched]:
    """A stream that has read its topic, whose retention is an hour."""
    feed.send(feed.create("values", config={"retention.ms": str(HOUR * 1000)}), session(2))
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Watched(runs, instance)


def let_headroom_shrink(feed: Feed) -> None:
    """Append a message that retention deletes in five minutes, as the first unread message of a partition."""
    late = int((time.time() - 55 * 60) * 1000)
    feed.append(feed.create("late", config={"retention.ms": str(HOUR * 1000)}), [ProducerRecord("t", b"{}", late)])


def test_an_alarm_becomes_a_failed_check_and_its_end_a_passed_one(feed: Feed, watched: Watched) -> None:
    never = watched.look()
    assert (watched.results, "nothing to judge" in str(never.skip_message)) == ([], True)

    watched.runs.run()
    assert str(watched.look().skip_message) == "adding: no alarm"
    assert [result.status for result in watched.results] == [PASSED]
    for _ in range(3):
        watched.look()
    assert len(watched.results) == 1

    feed.append(feed.create("late"), [ProducerRecord("t", snapshot(1, a=1))])
    assert watched.look().asset_events == []
    watched.runs.run()
    late = feed.create("later", config={"retention.ms": str(HOUR * 1000)})
    feed.append(late, [ProducerRecord("t", snapshot(1, a=1), int((time.time() - 55 * 60) * 1000))])
    assert str(watched.look().skip_message) == "adding: no alarm; seen once: headroom"
    assert str(watched.look().skip_message) == "adding: error: headroom"
    assert [result.status for result in watched.results] == [FAILED, PASSED]
    evaluation = watched.results[0].evaluation
    assert evaluation is not None
    assert (evaluation.severity.value, evaluation.passed, evaluation.blocking) == ("ERROR", False, False)
    assert f"of {late}/0 in 5 min" in str(evaluation.description)
    assert evaluation.metadata["lag_messages"].value == 1.0
    assert 0 < float(str(evaluation.metadata["headroom_hours"].value)) < 0.1

    watched.runs.run()
    watched.look()
    assert [result.status for result in watched.results] == [PASSED, FAILED, PASSED]


def test_checks_of_a_table_with_rows_are_requested_until_a_run_has_planned_them(watched: Watched) -> None:
    table = make_table_key(watched.runs.stream)
    watched.runs.run()
    assert watched.look().run_requests == []
    watched.instance.report_runless_asset_event(AssetMaterialization(table, metadata={"rows": 2.0}))
    requests = watched.look().run_requests
    assert requests is not None
    (request,) = requests
    assert request.job_name == "adding_checks"
    assert [result.status for result in watched.results] == [PASSED, PASSED]  # the sensor also reports its result
    job = watched.definitions.resolve_job_def("adding_checks")
    assert job.tags == MAINTENANCE
    watched.instance.create_run_for_job(job)
    assert watched.look().run_requests == []


def test_a_kafka_that_stays_away_is_an_error_of_the_first_look(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two polls of 30 s each, an outage would be announced after more than a minute."""
    monkeypatch.setattr(watcher, "OUTAGE_SECONDS", 0.1)
    watched.runs.run(trigger=Every(1), stop=stopped_soon())
    watched.look()
    there = watched.runs.settings.kafka
    watched.configure(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1", timeout_seconds=1.0))
    assert str(watched.look().skip_message).startswith("adding: error: kafka; unknown: ")
    watched.configure(kafka=there)
    assert str(watched.look().skip_message) == "adding: no alarm"


def stopped_soon() -> threading.Event:
    """Return a stop that is set two seconds after the start of an endless run."""
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    return stop


def test_a_run_that_fails_before_the_check_does_not_hide_an_alarm(feed: Feed, watched: Watched) -> None:
    watched.runs.run()
    late = feed.create("late", config={"retention.ms": str(HOUR * 1000)})
    feed.append(late, [ProducerRecord("t", snapshot(1, a=1), int((time.time() - 55 * 60) * 1000))])
    for _ in range(2):
        watched.look()
    table = make_table_key(watched.runs.stream)
    wrong = {"ops": {table.to_python_identifier(): {"config": {"report_seconds": 0.0}}}}
    job = watched.definitions.resolve_implicit_global_asset_job_def()
    ended = job.execute_in_process(
        run_config=wrong, instance=watched.instance, asset_selection=[table], raise_on_error=False
    )
    assert (ended.success, watched.results[0].status) == (False, AssetCheckExecutionRecordStatus.PLANNED)

    watched.look()
    assert [result.status for result in watched.results][::2] == [FAILED, FAILED]
    for _ in range(2):
        watched.look()
    assert len(watched.results) == 3


def test_a_result_is_shown_with_the_newest_materialization_of_the_table(watched: Watched) -> None:
    watched.runs.run()
    watched.look()
    key = make_table_key(watched.runs.stream)
    watched.instance.report_runless_asset_event(AssetMaterialization(key))
    watched.look()
    watched.look()
    newest = find_newest_materialization(watched.runs.stream, watched.instance)
    assert newest is not None
    targets = [result.evaluation and result.evaluation.target_materialization_data for result in watched.results]
    assert [target and target.storage_id for target in targets] == [newest.storage_id, None]


def test_a_kafka_that_does_not_answer_is_a_failed_check_that_says_what_is_unknown(watched: Watched) -> None:
    watched.runs.run()
    watched.look()
    watched.configure(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.2))
    watched.look()
    watched.look()
    evaluation = watched.results[0].evaluation
    assert evaluation is not None
    assert (evaluation.passed, evaluation.severity.value) == (False, "ERROR")
    assert "unknown: stalled, freshness, headroom" in str(evaluation.description)
    assert "lag_messages" not in evaluation.metadata


def test_a_cursor_that_cannot_be_read_is_reset_and_the_check_evaluated_again(watched: Watched) -> None:
    watched.runs.run()
    watched.look()
    watched.cursor = share("[]", "adding")
    watched.look()
    assert [result.status for result in watched.results] == [PASSED, PASSED]


def test_the_check_can_be_executed_by_hand(feed: Feed, watched: Watched) -> None:
    watched.runs.run()
    let_headroom_shrink(feed)
    check = make_health_check(watched.runs.stream, watched.runs.settings)
    ran = materialize([check], instance=watched.instance, selection=AssetSelection.all_asset_checks())
    (evaluation,) = ran.get_asset_check_evaluations()
    assert (ran.success, evaluation.passed, evaluation.severity.value) == (True, False, "ERROR")


class Hook:
    """A webhook on loopback.

    Attributes:
        answers: Status of the next responses; the last status is repeated.
        bodies: The accepted request bodies.
    """

    def __init__(self) -> None:
        self.answers, self.bodies = [204], list[bytes]()

    @property
    def notes(self) -> list[tuple[NotificationEvent, str, AlarmSeverity]]:
        decoded = [msgspec.json.decode(body, type=Notification) for body in self.bodies]
        return [(note.event, note.alarm, note.severity) for note in decoded]

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Listen and return the address."""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
                if status < 300:
                    hook.bodies.append(body)
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/{CANARY}"
            finally:
                server.shutdown()
                serving.join()


def test_a_webhook_gets_one_post_when_an_alarm_begins_and_one_when_it_ends(
    feed: Feed, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals, redirects and a missing server stop no poll; unaccepted notifications are sent again."""
    hook = Hook()
    began = (NotificationEvent.BEGAN, AlarmKind.HEADROOM, AlarmSeverity.ERROR)
    watched.configure(health=HealthSettings(secrets={"webhook": f"env:{VARIABLE}"}))
    watched.runs.run()
    let_headroom_shrink(feed)
    said = []
    with hook.listening() as address:
        monkeypatch.setenv(VARIABLE, address)
        hook.answers = [503, 302, 204]
        watched.look()
        said = [str(watched.look().skip_message) for _ in range(3)]
        assert hook.notes == [began]
        watched.look()
        assert hook.notes == [began]
    refused = [f"adding: error: headroom; webhook: it answered {status}, 1 waiting" for status in (503, 302)]
    assert said == [*refused, "adding: error: headroom"]

    lift_retention(feed)
    gone = watched.look()
    assert "it could not be reached" in str(gone.skip_message)
    assert watched.waiting == 1
    with hook.listening() as address:
        monkeypatch.setenv(VARIABLE, address)
        watched.look()
        watched.look()
    assert hook.notes == [began, (NotificationEvent.ENDED, AlarmKind.HEADROOM, AlarmSeverity.ERROR)]
    assert watched.waiting == 0
    assert CANARY not in f"{caplog.text}{said}{gone.skip_message}{watched.cursor}{watched.results}"


def lift_retention(feed: Feed) -> None:
    """Delete the message that is about to expire."""
    feed.delete(f"{feed.family}.late")
