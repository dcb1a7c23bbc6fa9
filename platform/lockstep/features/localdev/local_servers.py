"""Starts the servers of a live platform: Kafka, targets of deliveries, Dagster, exporter and live page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.features.localdev import log_rotation
from lockstep.features.localdev.local_platform import (
    ALERTS,
    DATABASE,
    KAFKA,
    MOVES_TOPIC,
    OUTPUTS,
    LocalPlatform,
    show_step,
)
from lockstep.features.localdev.local_postgres import create_cluster, make_address
from lockstep.features.localdev.processes import (
    MARK,
    find_free_ports,
    is_free,
    list_platform_processes,
)
from lockstep.features.localdev.producer import create_topic
from lockstep.settings import KafkaSettings

if TYPE_CHECKING:
    from dagster_graphql import DagsterGraphQLClient

WEB_PORT = 3000
PAGE_PORT = 3002
EXPORTER_PORT = 9464
"""Default ports; others are chosen where these are in use."""
LOCATION = "lockstep"
"""The code location."""
ANSWER_SECONDS = 20
"""Time for an answer of Dagster's web server."""
RELOAD_SECONDS = 240
"""Time for a Reload; Dagster's own limit is 180 s."""
ALERTS_FILE = "alerts.jsonl"


def start_servers(platform: LocalPlatform, speed: float) -> Iterator[str]:
    """Start the missing servers, with the addresses that the others know, and wait until they work."""
    os.environ[MARK] = str(platform.folder)  # marks all that is started from here
    if list_platform_processes(platform.folder) and not platform.servers().kafka:
        yield "ending the rest of a killed start"
        platform.stop()
    if not list_platform_processes(platform.folder):  # a record of another boot names processes and ports of others
        yield "starting Kafka"
        platform.start_kafka()
    elif not platform.is_running(KAFKA):
        yield "starting Kafka again"
        platform.restart_kafka()
    yield from _start_outputs(platform)
    folders = [str(platform.folder / "logs"), str(platform.folder / "kafka")]
    platform.ensure("logs", lambda: ["python", log_rotation.__file__, *folders])
    if not platform.is_running("feed"):
        yield f"feeding {speed:g} recorded messages a second"
    feed = ["python", "-m", "lockstep.features.localdev.feed", str(platform.repository), "--speed", str(speed)]
    platform.ensure("feed", lambda: feed)
    if not all(map(platform.is_running, ("metrics", "page", "code", "web", "daemon"))):
        yield "starting Dagster: code location, web server, daemon; the exporter of metrics, and the live page"
    if not platform.is_running("metrics"):
        _start_exporter(platform)
    if not platform.is_running("page"):
        _start_page(platform)
    _start_dagster(platform)


def _start_outputs(platform: LocalPlatform) -> Iterator[str]:
    """Start the targets of deliveries: a database, a receiver of alerts, and a topic; without Postgres, none."""
    data = platform.folder / DATABASE
    try:
        create_cluster(data)
    except EnvironmentProblem as error:
        yield f"without targets for rows of order_books: {error.problem}; next: {error.next_step}"
        return
    if not all(map(platform.is_running, (DATABASE, ALERTS))):
        yield "starting Postgres and a receiver of alerts, to which order_books delivers rows"
    postgres = platform.servers().commands.get(DATABASE) or _make_server(DATABASE, data)
    alerts = platform.servers().commands.get(ALERTS) or _make_server(ALERTS, platform.folder / ALERTS_FILE)
    platform.ensure(DATABASE, lambda: postgres)
    platform.ensure(ALERTS, lambda: alerts)
    addresses = (make_address(data, int(postgres[-1])), f"http://127.0.0.1:{alerts[-1]}/")
    platform.set_outputs(dict(zip(OUTPUTS, addresses, strict=True)))
    create_topic(KafkaSettings(bootstrap_servers=platform.servers().kafka), MOVES_TOPIC)


def _make_server(module: str, place: Path) -> list[str]:
    """The command of a server on a free port, its last argument."""
    return ["python", "-m", f"lockstep.features.localdev.{module}", str(place), str(find_free_ports(1)[0])]


def _start_exporter(platform: LocalPlatform) -> None:
    port = EXPORTER_PORT if is_free(EXPORTER_PORT) else find_free_ports(1)[0]
    platform.start("metrics", ["lockstep", "metrics", "--port", str(port)])
    platform.set_metrics(f"http://127.0.0.1:{port}/metrics")


def _start_page(platform: LocalPlatform) -> None:
    port = PAGE_PORT if is_free(PAGE_PORT) else find_free_ports(1)[0]
    platform.start("page", ["lockstep", "console", "--port", str(port)])
    platform.set_page(f"http://127.0.0.1:{port}")


def _start_dagster(platform: LocalPlatform) -> None:
    """One code server for the web server and the daemon; runs are its children."""
    from dagster_graphql import DagsterGraphQLClient

    from lockstep.orchestration.launch import create_dagster_storage  # loads Dagster

    create_dagster_storage(platform.dagster_home)
    workspace = platform.folder / "workspace.yaml"
    had_code = platform.is_running("code")
    platform.ensure("code", lambda: _make_code_command(platform, workspace))
    code = int(_find_option(platform.servers().commands["code"], "-p"))
    platform.wait(lambda: not is_free(code), lambda: "the code server does not listen yet", show_step)
    platform.ensure("web", lambda: _make_web_command(workspace))
    platform.ensure("daemon", lambda: ["dagster-daemon", "run", "-w", str(workspace)])
    port = int(_find_option(platform.servers().commands["web"], "-p"))
    platform.set_console(f"http://127.0.0.1:{port}")
    if had_code:
        _reload_broken_code(port)
    client = DagsterGraphQLClient("127.0.0.1", port, timeout=ANSWER_SECONDS)
    find_problems = partial(find_dagster_problems, client, platform.dagster_home)
    platform.wait(lambda: not find_problems(), lambda: "; ".join(find_problems()), show_step)


def _make_code_command(platform: LocalPlatform, workspace: Path) -> list[str]:
    """The command of a code server on a free port, which the workspace names from now on."""
    port = find_free_ports(1)[0]
    server = {"host": "127.0.0.1", "port": port, "location_name": LOCATION}
    workspace.write_bytes(msgspec.yaml.encode({"load_from": [{"grpc_server": server}]}))
    serve = ["python", "-m", "lockstep.orchestration.code_server", "-h", "127.0.0.1", "-p", str(port)]
    return [*serve, "-m", "lockstep.code_location", "--location-name", LOCATION, "-d", str(platform.repository)]


def _make_web_command(workspace: Path) -> list[str]:
    port = WEB_PORT if is_free(WEB_PORT) else find_free_ports(1)[0]
    web = ["python", "-m", "lockstep.orchestration.web_server", "-h", "127.0.0.1", "-p", str(port)]
    return [*web, "-w", str(workspace)]


def _find_option(command: Sequence[str], option: str) -> str:
    """The value of an option of a command."""
    return command[list(command).index(option) + 1]


_ERROR = "PythonError"
_UNREACHABLE = "DagsterUserCodeUnreachableError"
"""The web server asks an unreachable code server again by itself."""
_LOCATION_QUERY = """
query Location($name: String!) {
  workspaceLocationEntryOrError(name: $name) {
    ... on WorkspaceLocationEntry {
      locationOrLoadError { __typename ... on PythonError { className message causes { message } } }
    }
  }
}
"""


def find_dagster_problems(client: DagsterGraphQLClient, home: Path) -> list[str]:
    """Reasons why Dagster does not work yet, as text; empty when its daemons and the code location do.

    Args:
        client: Its web server.
        home: The folder of its instance.

    Raises:
        LockstepError: The code cannot be loaded; names the first cause.
    """
    from dagster_graphql import DagsterGraphQLClientError

    from lockstep.orchestration.launch import find_unhealthy_daemons

    if unhealthy := find_unhealthy_daemons(home):
        return [f"daemon {name} does not work yet" for name in unhealthy]
    try:
        location = _ask_location(client)
    except DagsterGraphQLClientError as error:
        return [f"the web server does not answer yet ({error})"]
    if location is None or location.get("className") == _UNREACHABLE:
        return ["the code location is not loaded yet"]
    if location["__typename"] == _ERROR:
        errors = [location, *location["causes"]]
        problem = f"the code location: {str(errors[-1]['message']).strip()}"
        raise LockstepError(problem, next_step="correct the code, then make up, or Reload in Dagster")
    return []


def _ask_location(client: DagsterGraphQLClient) -> dict[str, Any] | None:
    """The code location, or the error of its last load; None if it is not loaded yet."""
    answer = client._execute(_LOCATION_QUERY, {"name": LOCATION})  # noqa: SLF001  # no method has this question
    entry = answer["workspaceLocationEntryOrError"]
    location: dict[str, Any] | None = entry and entry["locationOrLoadError"]
    return location


def _reload_broken_code(port: int) -> None:
    """Load the code again if its last load failed; it may be correct by now."""
    from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

    client = DagsterGraphQLClient("127.0.0.1", port, timeout=RELOAD_SECONDS)
    with suppress(DagsterGraphQLClientError):
        location = _ask_location(client)
        if location is not None and location["__typename"] == _ERROR:
            client.reload_repository_location(LOCATION)
