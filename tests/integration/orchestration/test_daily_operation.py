"""A day of a stream through a real daemon and web server, with the results that they show.

The tests are steps that share one table, one home and one Kafka, in this order: first run, scheduled jobs, the check,
a new topic, the display, "materialize all", Terminate, halt. Faults of the jobs are in the other modules, most of them
slow.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from dagster import AssetKey, DagsterRunStatus, RunsFilter
from dagster_graphql import DagsterGraphQLClient
from deltalake import DeltaTable
from gql import Client, gql
from gql.transport.requests import RequestsHTTPTransport

from lockstep.control.heartbeat import Phase, read_heartbeat
from lockstep.features.localdev.local_servers import find_dagster_problems
from lockstep.features.localdev.processes import find_free_ports
from lockstep.operations.lifecycle import close_hour
from lockstep.orchestration.names import OUTCOME_TAG
from lockstep.table.head import Desired
from tests.support.descendants import list_descendants
from tests.support.installation import ROOT, Installation, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import DagsterInstance, DagsterRun


LOCATION = "lockstep"
TABLE = AssetKey(["order_books", "table"])
NODE = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  freshnessStatusInfo { freshnessStatus }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status runId evaluation { success severity } } } } } } } }"""
ENDED = {DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED}


class WebServer:
    """Dagster's web server next to the daemon of an installation."""

    def __init__(self, installation: Installation, port: int) -> None:
        self._installation = installation
        self.console = DagsterGraphQLClient("127.0.0.1", port)
        self._queries = Client(transport=RequestsHTTPTransport(f"http://127.0.0.1:{port}/graphql"))

    def asset(self, name: str) -> dict[str, Any]:
        """Return the web server's data of an asset of the stream."""
        question = gql(NODE)
        question.variable_values = {"key": {"path": ["order_books", name]}}
        answer = self._queries.execute(question)
        return dict(answer["assetNodeOrError"])

    def check(self, name: str = "completeness") -> dict[str, Any] | None:
        """Return the result of a check that is shown with the table, or None."""
        checks = {check["name"]: check for check in self.asset("table")["assetChecksOrError"]["checks"]}
        shown = checks[name]["executionForLatestMaterialization"]
        return None if shown is None else dict(shown)

    def shows_a_result(self) -> bool:
        """Return whether the completeness check has a visible result."""
        shown = self.check()
        return shown is not None and shown["status"] == "SUCCEEDED"

    def launch(self, job: str) -> str:
        """Launch a job through queue and daemon, as a user does, and return its run id."""
        return str(self.console.submit_job_execution(job, LOCATION))

    def run_job(self, job: str) -> None:
        """Launch a job and assert that it succeeds."""
        run = ended(self._installation, self.launch(job))
        assert run.status is DagsterRunStatus.SUCCESS


def ended(installation: Installation, run_id: str) -> DagsterRun:
    """Wait for a run's end and return it; a late run fails with Dagster's events of it."""
    with installation.dagster() as instance:  # opened once, as this costs as much as many polls

        def run() -> DagsterRun:
            found = instance.get_run_by_id(run_id)
            assert found is not None
            return found

        try:
            wait_until(lambda: run().status in ENDED, "the run ends")
        except AssertionError as late:
            events = "\n".join(entry.message for entry in instance.all_logs(run_id)[-20:])
            late.add_note(f"{run()}\n{events}\n{installation.daemon_said()}")
            raise
        return run()


def count_windows(instance: DagsterInstance) -> int:
    """Return the number of observed windows of batches."""
    return len(instance.fetch_observations(TABLE, limit=1000).records)


def newest_metadata(installation: Installation, asset: str) -> Mapping[str, object]:
    """Return the metadata of an asset's newest materialization."""
    with installation.dagster() as instance:
        event = instance.get_latest_materialization_event(AssetKey(["order_books", asset]))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def writing_run(installation: Installation) -> str:
    """Wait for a writing run and return its id in Dagster."""
    wait_until(lambda: installation.writes(installation.epoch()), "a run writes")
    last = read_heartbeat(installation.folders.control, installation.epoch())
    assert last is not None
    return last.run_id


@pytest.fixture(scope="module", autouse=True)
def web(installation: Installation) -> Iterator[WebServer]:
    """A web server, and a daemon that evaluates freshness every two seconds."""
    (port,) = find_free_ports(1)
    with installation.daemon(more={"FRESHNESS_DAEMON_INTERVAL_SECONDS": "2"}, served=True):
        workspace = str(installation.workspace)
        command = [sys.executable, "-m", "dagster_webserver", "-w", workspace, "-h", "127.0.0.1", "-p", str(port)]
        with (installation.folder / "web.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=installation.environment("home"), stdout=log, stderr=log)
        server = WebServer(installation, port)
        home = installation.folder / "home" / "dagster"
        try:
            wait_until(
                lambda: process.poll() is not None or not find_dagster_problems(server.console, home), "Dagster works"
            )
            assert process.poll() is None, (installation.folder / "web.log").read_text()
            yield server
        finally:
            family = [process.pid, *list_descendants(process.pid)]
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            finally:
                process.kill()
            wait_until(lambda: not any(map(psutil.pid_exists, family)), "no process is left")


def test_a_bounded_run_of_the_command_line_commits_all_and_ends(installation: Installation, web: WebServer) -> None:
    """It adds no check result: the stream's job, unlike its asset, has no checks."""
    installation.produce("first", 0, 500)
    config = installation.folder / "bounded.yaml"
    config.write_text("ops: {order_books__table: {config: {available_now: true}}}")
    run = installation.start("job", "execute", "-j", "order_books_stream", "-c", str(config))
    assert run.wait() == 0, run.said()
    assert installation.position("first") == 500
    assert (installation.head().desired, installation.epoch()) == (Desired.BOUNDED, 1)
    assert newest_metadata(installation, "table")["run_messages"] == 500
    with installation.dagster() as instance:
        (bounded,) = instance.get_runs(RunsFilter(job_name="order_books_stream"))
    shown = web.check()
    assert shown is None or shown["runId"] != bounded.run_id


def test_the_jobs_of_compaction_and_housekeeping_run_through_the_daemon(
    installation: Installation, web: WebServer
) -> None:
    before = DeltaTable(installation.folders.table).to_pyarrow_table().num_rows
    close_hour(installation.folders)
    for job, asset, figure in (("compaction", "compaction", "rows"), ("housekeeping", "housekeeping", "rewind_floor")):
        web.run_job(f"order_books_{job}")
        assert figure in newest_metadata(installation, asset)
    assert newest_metadata(installation, "housekeeping")["rewind_floor"] == 0
    assert DeltaTable(installation.folders.table).to_pyarrow_table().num_rows == before


def test_a_result_stays_visible_while_windows_go_by(installation: Installation, web: WebServer) -> None:
    installation.run_command("lockstep.cli", "start", "order_books")
    writing_run(installation)
    assert installation.head().desired is Desired.RUNNING

    web.run_job("order_books_checks")
    # The health sensor may have requested the first checks as well: its result is the newest then.
    wait_until(web.shows_a_result, "the checks have run")

    with installation.dagster() as instance:  # opened once, as this costs as much as many polls
        seen = count_windows(instance)
        for until in (600, 700):
            installation.produce("first", until - 100, until)
            wait_until(lambda: installation.position("first") == until, "a batch is committed")  # noqa: B023
        wait_until(lambda: count_windows(instance) > seen, "another window is observed")
    assert web.shows_a_result()


def test_a_new_topic_is_read_by_a_handover_that_the_sensor_asked_for(
    installation: Installation, web: WebServer
) -> None:
    first = writing_run(installation)
    epoch = installation.epoch()
    installation.produce("second", 0, 300)
    wait_until(lambda: installation.position("second") == 300, "the new topic is read")
    handed_over = ended(installation, first)
    assert (handed_over.status, handed_over.tags[OUTCOME_TAG]) == (DagsterRunStatus.SUCCESS, "handed over")
    last = read_heartbeat(installation.folders.control, installation.epoch())
    assert last is not None
    assert (installation.epoch(), last.never_ending) == (epoch + 1, True)
    assert installation.head().desired is Desired.RUNNING
    assert web.shows_a_result()


def test_the_health_of_a_live_stream_is_shown_and_stays_so_after_a_checked_version(web: WebServer) -> None:
    """The sensor evaluates health again after the completeness check has materialized its checked version."""
    healthy = {"status": "SUCCEEDED", "runId": "", "evaluation": {"success": True, "severity": "WARN"}}
    wait_until(lambda: web.check("health") == healthy, "the health sensor has looked")


def test_freshness_is_evaluated_by_the_daemon(web: WebServer) -> None:
    for name in ("ledger", "table"):
        wait_until(
            lambda: web.asset(name)["freshnessStatusInfo"] == {"freshnessStatus": "HEALTHY"},  # noqa: B023
            f"{name} is fresh",
        )
    assert web.asset("topics")["freshnessStatusInfo"] is None


def test_the_figures_of_the_table_begin_with_lag_freshness_and_completeness(installation: Installation) -> None:
    """The figures are those of a window; the end of a run has a separate observation."""
    with installation.dagster() as instance:
        materialization = instance.get_latest_materialization_event(TABLE)
        recent = [each.asset_observation for each in instance.fetch_observations(TABLE, limit=20).records]
    assert materialization is not None
    assert materialization.asset_materialization is not None
    observed = next(each for each in recent if each is not None and "outcome" not in each.metadata)
    leading = ["lag_messages", "freshness_p50_seconds", "freshness_p99_seconds", "completeness_percent"]
    assert list(observed.metadata)[:4] == leading
    checked = materialization.asset_materialization.metadata
    assert [name for name in leading if name in checked] == list(checked)[: -len(("rows_in_table", "table_version"))]
    for each in (observed.metadata, checked):
        assert each["completeness_percent"].value == 100.0


def test_materialize_all_succeeds_and_leaves_a_live_table_alone(installation: Installation, web: WebServer) -> None:
    living = writing_run(installation)
    epoch = installation.epoch()
    whole = installation.start("asset", "materialize", "--select", "order_books/table,order_books/compaction")
    assert whole.wait() == 0, whole.said()

    assert installation.writes(epoch)
    with installation.dagster() as instance:
        (skipped,) = (run for run in instance.get_runs() if run.tags.get(OUTCOME_TAG) == "skipped")
        events = instance.fetch_materializations(TABLE, limit=20).records
        compacted = instance.fetch_materializations(AssetKey(["order_books", "compaction"]), limit=20).records
    event = next(each.asset_materialization for each in events if each.run_id == skipped.run_id)
    assert event is not None
    note = {name: value.value for name, value in event.metadata.items()}
    assert "keeps order_books up to date" in str(note["skipped"])
    assert (note["live_run"], note["epoch"]) == (living, epoch)
    assert skipped.run_id in {each.run_id for each in compacted}
    assert web.shows_a_result()


def test_terminate_stops_the_stream_and_verify_proves_what_it_wrote(installation: Installation) -> None:
    run_id = writing_run(installation)
    epoch = installation.epoch()
    with installation.dagster() as instance:
        assert instance.run_coordinator.cancel_run(run_id)
    assert ended(installation, run_id).status is DagsterRunStatus.CANCELED
    wait_until(lambda: installation.head().desired is Desired.STOPPED, "the stop is committed")
    last = read_heartbeat(installation.folders.control, epoch)
    assert last is not None
    assert last.phase is Phase.ENDED
    installation.run_command("lockstep.cli", "verify", "order_books")


def test_a_stream_that_lost_its_integrity_fails_and_nobody_starts_it_again(
    installation: Installation, web: WebServer
) -> None:
    installation.produce("cut", 1, 50)  # without the snapshot that opens the session
    run = ended(installation, web.launch("order_books_stream"))
    assert (run.status, run.tags[OUTCOME_TAG]) == (DagsterRunStatus.FAILURE, "halted")
    head, (finding,) = installation.head(), installation.head().findings
    assert (head.desired, finding.topic, finding.offset) == (Desired.HALTED, "order_books.cut", 0)
    count = len(installation.stream_runs())
    refused = installation.materialize(available_now=True)
    assert refused.wait() != 0
    assert installation.epoch() == head.epoch  # it did not even claim
    assert len(installation.stream_runs()) == count + 1
