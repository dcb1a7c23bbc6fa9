"""What Dagster's own web server says of a stream while it lives: its check, its freshness, its figures."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from dagster_graphql import DagsterGraphQLClient
from gql import Client, gql
from gql.transport.requests import RequestsHTTPTransport

from lockstep.localdev.platform import find_dagster_problems
from lockstep.localdev.processes import find_free_ports
from lockstep.orchestration.names import OUTCOME_TAG
from tests.support.descendants import list_descendants
from tests.support.installation import ROOT, Installation, Run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.timeout(900)]

LOCATION = "lockstep"
TABLE = AssetKey(["order_books", "table"])
NODE = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  freshnessStatusInfo { freshnessStatus }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status runId evaluation { success severity } } } } } } } }"""


class Visible:
    """An installation whose stream lives, beside Dagster's web server and daemon."""

    def __init__(self, installation: Installation, port: int) -> None:
        self.installation = installation
        self.console = DagsterGraphQLClient("127.0.0.1", port)
        self._queries = Client(transport=RequestsHTTPTransport(f"http://127.0.0.1:{port}/graphql"))

    def asset(self, name: str) -> dict[str, Any]:
        """What the web server says of an asset of the stream."""
        question = gql(NODE)
        question.variable_values = {"key": {"path": ["order_books", name]}}
        answer = self._queries.execute(question)
        return dict(answer["assetNodeOrError"])

    def check(self, name: str = "completeness") -> dict[str, Any] | None:
        """The result of a check that is shown with the table; None when none is."""
        checks = {check["name"]: check for check in self.asset("table")["assetChecksOrError"]["checks"]}
        shown = checks[name]["executionForLatestMaterialization"]
        return None if shown is None else dict(shown)

    def run_job(self, job: str) -> str:
        """Launch a job from the web UI, through queue and daemon; the id of its run, which succeeded."""
        run = self.console.submit_job_execution(job, LOCATION)
        with self.instance() as instance:

            def status() -> DagsterRunStatus:
                found = instance.get_run_by_id(run)
                assert found is not None
                return found.status

            wait_until(lambda: instance.get_run_by_id(run) is not None and status().value in ENDED, f"{job} ends")
            assert status() is DagsterRunStatus.SUCCESS
        return run

    def stream(self) -> Run:
        """Start a never-ending run that reports each second, and wait until it writes."""
        config = self.installation.folder / "every_second.yaml"
        config.write_text("ops: {order_books__table: {config: {report_seconds: 1}}}")
        epoch = self.installation.epoch() + 1
        run = self.installation.start("job", "execute", "-j", "order_books_stream", "-c", str(config))
        wait_until(lambda: self.installation.writes(epoch) or run.process.poll() is not None, "the run writes")
        assert self.installation.writes(epoch), run.said()
        return run

    def windows(self) -> int:
        """How many windows of batches were written down so far, as whatever kind of event."""
        with self.instance() as instance:
            kinds = (instance.fetch_observations, instance.fetch_materializations)
            return sum(len(fetch(TABLE, limit=1000).records) for fetch in kinds)

    def instance(self) -> DagsterInstance:
        return DagsterInstance.from_config(str(self.installation.folder / "home" / "dagster"))


ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@pytest.fixture(scope="module")
def visible(installation: Installation) -> Iterator[Visible]:
    """A stream that lives, and a Dagster that looks at freshness every other second."""
    installation.produce("first", 0, 500)
    (port,) = find_free_ports(1)
    with installation.daemon(more={"FRESHNESS_DAEMON_INTERVAL_SECONDS": "2"}, served=True):
        workspace = str(installation.workspace)
        command = [sys.executable, "-m", "dagster_webserver", "-w", workspace, "-h", "127.0.0.1", "-p", str(port)]
        with (installation.folder / "web.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=installation.environment("home"), stdout=log, stderr=log)
        shown = Visible(installation, port)
        home = installation.folder / "home" / "dagster"
        try:
            wait_until(
                lambda: process.poll() is not None or not find_dagster_problems(shown.console, home), "Dagster works"
            )
            assert process.poll() is None, (installation.folder / "web.log").read_text()
            shown.stream()
            yield shown
        finally:
            family = [process.pid, *list_descendants(process.pid)]
            process.send_signal(signal.SIGINT)
            try:
                process.wait(120)
            finally:
                process.kill()
            wait_until(lambda: not any(map(psutil.pid_exists, family)), "no process is left")


def test_a_result_stays_visible_while_windows_and_handovers_go_by(visible: Visible) -> None:
    """And a check that never ran is no green tick."""
    installation = visible.installation
    wait_until(lambda: visible.windows() > 0, "the run is observed")
    assert visible.check() is None

    visible.run_job("order_books_checks")  # its schedule may run it too

    def is_shown() -> bool:
        shown = visible.check()
        return shown is not None and shown["status"] == "SUCCEEDED"

    assert is_shown()

    seen = visible.windows()
    for until in (600, 700):
        installation.produce("first", until - 100, until)
        wait_until(lambda: installation.position("first") == until, "a batch is committed")  # noqa: B023
    wait_until(lambda: visible.windows() > seen, "another window is observed")
    assert is_shown()

    before = installation.runs[-1]
    visible.stream()
    assert before.wait() == 0, before.said()
    installation.produce("first", 700, 800)
    wait_until(lambda: installation.position("first") == 800, "the new run commits")
    assert is_shown()


def test_the_health_of_a_live_stream_is_shown_and_stays_so_after_a_checked_version(visible: Visible) -> None:
    """Its sensor evaluates it again when the check of the contents has materialized the version that it checked."""
    healthy = {"status": "SUCCEEDED", "runId": "", "evaluation": {"success": True, "severity": "WARN"}}
    wait_until(lambda: visible.check("health") == healthy, "the health sensor has looked")


def test_freshness_is_evaluated_by_the_daemon(visible: Visible) -> None:
    for name in ("ledger", "table"):
        wait_until(
            lambda: visible.asset(name)["freshnessStatusInfo"] == {"freshnessStatus": "HEALTHY"},  # noqa: B023
            f"{name} is fresh",
        )
    assert visible.asset("topics")["freshnessStatusInfo"] is None


def test_the_figures_of_the_table_begin_with_lag_freshness_and_completeness(visible: Visible) -> None:
    """Those of a window; the end of a run has an observation of its own."""
    with visible.instance() as instance:
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


def test_materialize_all_succeeds_and_leaves_a_live_table_alone(visible: Visible) -> None:
    installation = visible.installation
    epoch, live = installation.epoch(), installation.runs[-1]
    whole = installation.start("asset", "materialize", "--select", "order_books/table,order_books/compaction")
    assert whole.wait() == 0, whole.said()

    assert (installation.epoch(), live.process.poll()) == (epoch, None)
    with visible.instance() as instance:
        (skipped,) = (run for run in instance.get_runs() if run.tags.get(OUTCOME_TAG) == "skipped")
        events = instance.fetch_materializations(TABLE, limit=20).records
        compacted = instance.fetch_materializations(AssetKey(["order_books", "compaction"]), limit=20).records
        started = instance.get_runs(filters=None)
    event = next(each.asset_materialization for each in events if each.run_id == skipped.run_id)
    assert event is not None
    note = {name: value.value for name, value in event.metadata.items()}
    assert "keeps order_books up to date" in str(note["skipped"])
    living = next(run.run_id for run in started if run.job_name == "order_books_stream" and not run.is_finished)
    assert (note["live_run"], note["epoch"]) == (living, epoch)
    assert skipped.run_id in {each.run_id for each in compacted}
    shown = visible.check()
    assert shown is not None
    assert shown["status"] == "SUCCEEDED"
