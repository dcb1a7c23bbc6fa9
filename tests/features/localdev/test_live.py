"""`make up` and `make down` with real processes: Kafka, Dagster, the feed and all streams of this repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, RunsFilter
from dagster_graphql import DagsterGraphQLClient, ReloadRepositoryLocationStatus

from assets.order_books import ALARMING_VALUE
from lockstep.control.handover import StopRequest
from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import ALERTS, DATABASE, KAFKA, LocalPlatform, Servers, find_tool
from lockstep.features.localdev.local_servers import ALERTS_FILE, LOCATION, find_dagster_problems
from lockstep.features.localdev.platform import open_live_platform
from lockstep.features.localdev.processes import list_platform_processes, stop_all
from lockstep.operations.lifecycle import stop_stream
from lockstep.orchestration.names import AUTOMATIC_TAG
from lockstep.table.commit import OutputLog
from lockstep.table.follower_positions import FollowerName, read_position
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions
from lockstep.verify.report import InvariantStatus, VerifyReport
from tests.support.listeners import find_reachable, list_listeners
from tests.support.repository import copy_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STREAMS = ("betting_markets", "checksummed_books", "order_books")
DEADLINE_SECONDS = 600


@dataclass(frozen=True)
class Live:
    """A separate platform in a folder that resembles this repository."""

    platform: LocalPlatform

    def make(self, what: str) -> subprocess.CompletedProcess[str]:
        """Run `up` or `down` as a background job of a script: without a terminal, and ignoring Ctrl-C."""
        command = [sys.executable, "-m", "lockstep.features.localdev.platform", what, str(self.platform.repository)]
        deaf = ["sh", "-c", 'trap "" INT TERM HUP; exec "$@"', "sh", *command]
        return subprocess.run(deaf, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    @property
    def servers(self) -> Servers:
        return self.platform.servers()

    def head(self, stream: str) -> Head:
        return OutputLog(self.folders(stream).table).base().head

    def folders(self, stream: str) -> StreamFolders:
        return StreamFolders(stream, self.platform.tables)

    def newest_message_age_seconds(self, stream: str) -> float:
        rows = read_positions(self.folders(stream), self.head(stream)).values()
        return time.time() - max(row.newest_timestamp.timestamp() for row in rows if row.newest_timestamp)

    def command(self, *arguments: str) -> str:
        """Run a command of lockstep to its end and return its output."""
        environment = {**os.environ, **self.platform.environment()}
        command = [find_tool("lockstep"), *arguments]
        done = subprocess.run(
            command, cwd=self.platform.repository, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kill(self, *names: str) -> None:
        """Kill servers and wait until the keeper has started them again."""
        before = self.servers.started
        for name in names:
            os.kill(before[name].pid, signal.SIGKILL)
        wait_until(lambda: all(self.servers.started[name] != before[name] for name in names), f"{names} again")

    def instance(self) -> DagsterInstance:
        return DagsterInstance.from_config(str(self.platform.folder / "dagster"))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("repository")
    copy_repository(repository)
    up = Live(open_live_platform(repository))
    said = up.make("up")
    try:
        assert said.returncode == 0, said.stdout + said.stderr
        yield up
    finally:
        stop_all(up.platform.folder, (), ())


def test_streams_run_as_runs_of_dagster_on_messages_of_now(live: Live) -> None:
    for stream in STREAMS:
        wait_until(lambda stream=stream: live.head(stream).batch >= 2, f"two batches of {stream}")  # type: ignore[misc]  # a default
        assert live.newest_message_age_seconds(stream) < DEADLINE_SECONDS
    with live.instance() as instance:
        started = {run.job_name for run in instance.get_runs() if run.status is DagsterRunStatus.STARTED}
        assert {f"{stream}_stream" for stream in STREAMS} <= started


def test_nothing_of_it_is_reached_from_another_machine(live: Live) -> None:
    listeners = list_listeners(process.pid for process in list_platform_processes(live.platform.folder))
    addresses = (live.servers.kafka, live.servers.console, live.servers.metrics.removesuffix("/metrics"))
    assert {int(address.rpartition(":")[2]) for address in addresses} <= {listener.port for listener in listeners}
    assert find_reachable(listeners) == []


def newest_figures(instance: DagsterInstance, table: AssetKey) -> dict[str, object]:
    """Return the metadata of the newest observation; each window of a run is an observation."""
    newest = instance.fetch_observations(table, limit=1).records
    event = newest[0].asset_observation if newest else None
    return {name: value.value for name, value in event.metadata.items()} if event is not None else {}


def test_the_ui_gets_figures_to_plot_and_a_partition_for_each_topic(live: Live) -> None:
    with live.instance() as instance:
        table = AssetKey(["order_books", "table"])
        wait_until(lambda: "headroom_hours" in newest_figures(instance, table), "a window after the first batch")
        figures = newest_figures(instance, table)
        plotted = ("messages", "rows", "lag_messages", "freshness_p99_seconds", "batch_seconds_mean", "headroom_hours")
        assert {name: type(figures.get(name)) for name in plotted} == dict.fromkeys(plotted, float)
        assert 11 < float(str(figures["headroom_hours"])) <= 12
        wait_until(lambda: len(instance.get_dynamic_partitions("order_books_topics")) >= 3, "topics as partitions")


def test_a_second_up_leaves_it_as_it_is(live: Live) -> None:
    before = live.servers
    said = live.make("up")
    assert (said.returncode, "it is up already" in said.stdout) == (0, True)
    assert live.servers == before


OWNERS_QUERY = "{ assetNodes { owners { ... on TeamAssetOwner { team } } } }"


def list_owners(console: DagsterGraphQLClient) -> set[str]:
    nodes = console._execute(OWNERS_QUERY)["assetNodes"]  # noqa: SLF001  # this client has no query for assets
    owners = chain.from_iterable(node["owners"] for node in nodes)
    return {owner["team"] for owner in owners}


def test_reload_shows_the_edited_definitions_and_the_streams_go_on(live: Live) -> None:
    console = DagsterGraphQLClient(live.servers.console.removeprefix("http://"), timeout=DEADLINE_SECONDS)
    wait_until(lambda: all(live.platform.head(stream) for stream in STREAMS), "a table of each stream")
    epochs = {stream: live.head(stream).epoch for stream in STREAMS}
    definitions = live.platform.repository / "definitions.py"
    code = definitions.read_text()

    definitions.write_text(code.replace("team:data-platform", "team:books"))
    assert console.reload_repository_location(LOCATION).status is ReloadRepositoryLocationStatus.SUCCESS
    assert list_owners(console) == {"books"}

    definitions.write_text(code + "\n1 / 0\n")
    assert console.reload_repository_location(LOCATION).status is ReloadRepositoryLocationStatus.FAILURE
    with pytest.raises(LockstepError, match="ZeroDivisionError"):
        find_dagster_problems(console, live.platform.dagster_home)

    definitions.write_text(code)
    assert console.reload_repository_location(LOCATION).status is ReloadRepositoryLocationStatus.SUCCESS
    assert find_dagster_problems(console, live.platform.dagster_home) == []
    assert list_owners(console) == {"data-platform"}
    at = {stream: live.head(stream).batch for stream in STREAMS}
    wait_until(lambda: all(live.head(stream).batch > at[stream] for stream in STREAMS), "all streams go on")
    assert {stream: live.head(stream).epoch for stream in STREAMS} == epochs


def test_a_run_that_is_terminated_in_the_ui_ends_and_a_new_one_goes_on(live: Live) -> None:
    console = DagsterGraphQLClient(live.servers.console.removeprefix("http://"))
    job = "betting_markets_stream"
    with live.instance() as instance:
        run = instance.get_runs(RunsFilter(job_name=job, statuses=[DagsterRunStatus.STARTED]))[0].run_id
    console.terminate_run(run)
    wait_until(lambda: live.head("betting_markets").desired is Desired.STOPPED, "the wish to stop is committed")
    wait_until(lambda: console.get_run_status(run) is DagsterRunStatus.CANCELED, "the run has ended as cancelled")
    at = live.head("betting_markets")

    console.submit_job_execution(job, LOCATION)

    wait_until(lambda: live.head("betting_markets").batch > at.batch, "the next batch")
    assert live.head("betting_markets").epoch == at.epoch + 1


def test_up_again_brings_back_what_is_to_be_running_and_leaves_the_rest_stopped(live: Live) -> None:
    patience = DEADLINE_SECONDS
    stop_stream(live.folders("checksummed_books"), StopRequest("enough", "a test"), patience_seconds=patience)
    assert live.make("down").returncode == 0
    before = {stream: live.head(stream).epoch for stream in STREAMS}
    begun = [each for stream in STREAMS for each in live.folders(stream).control.glob(f"start*-{before[stream]}.json")]
    assert begun == []  # no supervisor started a stream that `down` had ended

    said = live.make("up")

    assert said.returncode == 0, said.stdout + said.stderr
    assert "checksummed_books stays stopped (enough (a test)): lockstep start checksummed_books" in said.stdout
    with live.instance() as instance:
        statuses = {run.status for run in instance.get_runs() if run.job_name.endswith("_stream")}
    assert DagsterRunStatus.FAILURE not in statuses  # runs ended by `down` are canceled
    grown = {stream for stream in STREAMS if live.head(stream).epoch > before[stream]}
    assert grown == {"betting_markets", "order_books"}
    with live.instance() as instance:
        automatic = {run.job_name for run in instance.get_runs() if run.tags.get(AUTOMATIC_TAG) == "supervisor"}
    assert automatic == {"betting_markets_stream", "order_books_stream"}


def test_a_killed_code_server_comes_back_and_the_runs_go_on(live: Live) -> None:
    before = live.servers.started["code"]
    console = live.servers.console.removeprefix("http://")
    os.kill(before.pid, signal.SIGKILL)
    at = live.head("order_books")
    wait_until(lambda: live.servers.started["code"] != before, "the code server is started again")
    wait_until(lambda: live.head("order_books").batch > at.batch + 3, "the stream goes on")
    assert live.head("order_books").epoch == at.epoch
    loads = partial(DagsterGraphQLClient(console).reload_repository_location, LOCATION)
    wait_until(lambda: loads().status is ReloadRepositoryLocationStatus.SUCCESS, "the code location loads")


def read_delivered_batch(live: Live, name: str) -> int:
    position = read_position(live.platform.tables, FollowerName("delivery", name))
    source = position.find_source("order_books") if position is not None else None
    return 0 if source is None else source.batch


def read_alarming_ids(live: Live) -> set[str]:
    """Return the ids of the rows that require an alert, from the table alone."""
    history = msgspec.json.decode(live.command("deliver", "move_alerts", "--history", "--json"))
    first = min(event["batch"] for event in history[0]["events"])
    value = "abs(coalesce(quantity::double, 0) - coalesce(previous_quantity::double, 0)) * price::double"
    query = f"""
        SELECT _topic_id, _partition, _emit_offset, _row FROM order_books JOIN order_books_ledger ON
        _topic_id = topic_id AND _partition = partition AND _emit_offset >= start AND _emit_offset < until
        WHERE batch > {first} AND _topic LIKE 'order_books.spot_%' AND _cause = 'update' AND {value} >= {ALARMING_VALUE}
    """  # noqa: S608  # no user input
    answer = msgspec.json.decode(live.command("query", query, "--json"))
    assert not answer["more"]
    return {"/".join(map(str, row)) for row in answer["rows"]}


def test_rows_reach_every_output_once_whatever_is_killed(live: Live) -> None:
    names = ("market_books", "large_moves", "move_alerts")
    alerts = live.platform.folder / ALERTS_FILE
    wait_until(lambda: alerts.exists() and alerts.stat().st_size > 0, "an alert")
    for killed in ((DATABASE, ALERTS), (KAFKA,), ("code",)):
        before = {name: read_delivered_batch(live, name) for name in names}
        live.kill(*killed)
        wait_until(lambda b=before: all(read_delivered_batch(live, n) > b[n] for n in names), f"rows after {killed}")  # type: ignore[misc]  # a default
    live.platform.end("feed")
    stop_stream(live.folders("order_books"), StopRequest("enough", "a test"), patience_seconds=DEADLINE_SECONDS)
    for name in names:
        live.command("deliver", name)
    live.command("current", "order_books")

    report = msgspec.json.decode(live.command("verify", "order_books", "--json"), type=VerifyReport)

    assert {each.name: each.status for each in report.followers} == dict.fromkeys(
        (*names, "order_books"), InvariantStatus.PROVEN
    )
    lines = map(msgspec.json.decode, alerts.read_bytes().splitlines())
    stored = [line["id"].partition("/")[2].partition("/")[2] for line in lines]
    assert len(stored) == len(set(stored))
    assert set(stored) == read_alarming_ids(live)
    DagsterGraphQLClient(live.servers.console.removeprefix("http://")).submit_job_execution(
        "order_books_stream", LOCATION
    )
    assert live.make("up").returncode == 0  # starts the feed, too


def test_up_completes_and_down_ends_all_of_it_whatever_was_killed_before(live: Live) -> None:
    folder = live.platform.folder
    servers = live.servers
    for name in ("keeper", "code"):
        os.kill(servers.started[name].pid, signal.SIGKILL)
    wait_until(lambda: set(servers.dead()) == {"code", "keeper"}, "the code server is gone")
    completed = live.make("up")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert {name: live.servers.started[name] for name in ("kafka", "daemon", "feed")} == {
        name: servers.started[name] for name in ("kafka", "daemon", "feed")
    }
    assert live.servers.dead() == ()
    os.kill(live.servers.started["code"].pid, signal.SIGKILL)

    said = live.make("down")

    assert said.returncode == 0, said.stdout + said.stderr
    assert list_platform_processes(folder) == []
    assert live.head("order_books").batch > 0
    assert live.make("down").stdout.strip() == "nothing runs"
