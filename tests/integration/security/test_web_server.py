"""Dagster's web server with real requests: requests from pages of other sites change nothing."""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from dagster import AssetKey, DagsterInstance
from dagster_graphql import DagsterGraphQLClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from lockstep.features.localdev.processes import find_free_ports
from lockstep.operations.doctor.diagnosis import Level
from lockstep.operations.doctor.machine import check_web_servers
from lockstep.orchestration.launch import create_dagster_storage
from tests.support.browser_requests import BrowserRequest, Kind, list_requests
from tests.support.descendants import list_descendants
from tests.support.installation import ROOT, is_listening, wait_until
from tests.support.listeners import find_reachable, list_listeners

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DECLARED = "https://console.example"
ANSWER_SECONDS = 60
SAMPLE = 400
"""Number of requests sent from the whole list, about two milliseconds each."""
ATTACKER = "http://attacker.example"


@dataclass(frozen=True)
class WebServer:
    """A running web server.

    Attributes:
        port: Its port.
        home: Folder of its Dagster instance.
        pid: Its process.
    """

    port: int
    home: Path
    pid: int

    @property
    def origin(self) -> str:
        """The origin of its pages."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, host: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
        """Send a request unchanged and return status and content of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": host, **headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def mutate(self, method: str, headers: dict[str, str], *, host: str = "", query: str = "") -> tuple[int, bytes]:
        """Send a mutation in the body and in the query of the address."""
        mutation = query or make_deletion("0" * 32)
        body = mutation if headers.get("Content-Type") == "application/graphql" else json.dumps({"query": mutation})
        path = f"/graphql?query={quote(mutation)}"
        return self.ask(method, path, host or f"127.0.0.1:{self.port}", headers, body.encode())

    def list_forged(self) -> list[AssetKey]:
        """Return the forged asset if a request has reported it."""
        with DagsterInstance.from_config(str(self.home)) as instance:
            return [key for key in instance.all_asset_keys() if key == AssetKey("forged")]


def make_deletion(run: str) -> str:
    """Return a mutation that deletes a run."""
    return f'mutation {{ deletePipelineRun(runId: "{run}") {{ __typename }} }}'


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[WebServer]:
    """Start Dagster's web server with a separate home and without code locations."""
    home = folder / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    create_dagster_storage(home)
    workspace = folder / "workspace.yaml"
    workspace.write_text("load_from: []\n")
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", *arguments, "-p", str(port), "-w", str(workspace)]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "LOCKSTEP_WEB__ORIGINS": json.dumps([DECLARED])}
    with (folder / "web.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: server.poll() is not None or is_listening(port), "the web server answers")
        assert server.poll() is None, (folder / "web.log").read_text()
        yield WebServer(port, home, server.pid)
    finally:
        server.terminate()
        server.wait(ANSWER_SECONDS)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with serve(tmp_path_factory.mktemp("guarded"), "lockstep.orchestration.web_server") as server:
        yield server


def list_foreign(server: WebServer) -> list[BrowserRequest]:
    """Return a reproducible sample of the requests of other sites' pages, without followed links."""
    pages = (
        "https://attacker.example",
        f"http://127.0.0.1:{server.port + 1}",
        f"http://localhost:{server.port}",
        "null",
    )
    requests = [each for page in pages for each in list_requests(page, server.origin, is_own=False)]
    rebound = f"{ATTACKER}:{server.port}"
    requests += list_requests(rebound, rebound, is_own=False)
    harmful = [each for each in requests if each.kind is not Kind.SOCKET and each.path not in {"/", "/runs"}]
    return random.Random(7).sample(harmful, SAMPLE)  # noqa: S311  # a choice, no secret


def send(server: WebServer, request: BrowserRequest) -> bytes:
    """Send a browser's request with a mutation or report in address and body; return the answer's content."""
    mutation = make_deletion("0" * 32)
    path = f"{request.path}?query={quote(mutation)}&check_name=forged&passed=true"
    body = json.dumps({"query": mutation}) if request.method == "POST" else ""
    return server.ask(request.method, path, request.host, dict(request.headers), body.encode())[1]


def find_executed(server: WebServer) -> list[BrowserRequest]:
    """Return the foreign requests whose mutation Dagster executed."""
    return [request for request in list_foreign(server) if b'"deletePipelineRun"' in send(server, request)]


def test_no_request_of_another_site_is_executed(guarded: WebServer) -> None:
    assert find_executed(guarded) == []
    assert guarded.list_forged() == []


@pytest.mark.slow
def test_the_same_requests_are_executed_by_dagster_itself(tmp_path: Path) -> None:
    """The guard is necessary, as Dagster alone executes the attacks."""
    with serve(tmp_path, "dagster_webserver") as server:
        kinds = {request.kind for request in find_executed(server)}
        forged = server.list_forged()
        (found,) = [each for each in check_web_servers() if each.check == f"web server on port {server.port}"]
    assert found.level is Level.WARNING
    assert "lockstep.orchestration.web_server" in found.next_step
    assert kinds >= {Kind.IMAGE, Kind.FORM, Kind.SIMPLE_POST, Kind.SIMPLE_GET}
    assert forged == [AssetKey("forged")]


def test_clients_of_the_web_server_itself_delete_a_run(guarded: WebServer) -> None:
    with DagsterInstance.from_config(str(guarded.home)) as instance:
        run = instance.create_run(**NEW_RUN)
        own = {"Content-Type": "application/json", "Origin": guarded.origin, "Sec-Fetch-Site": "same-origin"}
        refused, said = guarded.mutate("POST", {**own, "Origin": ATTACKER}, query=make_deletion(run.run_id))
        assert (refused, b"Origin = 'http://attacker.example' is another site" in said) == (403, True)
        assert instance.get_run_by_id(run.run_id) is not None
        assert guarded.mutate("POST", own, query=make_deletion(run.run_id))[0] == http.HTTPStatus.OK
        assert instance.get_run_by_id(run.run_id) is None
    by_proxy = {"Content-Type": "application/json", "Origin": DECLARED}
    assert guarded.mutate("POST", by_proxy, host="console.example")[0] == http.HTTPStatus.OK
    client = DagsterGraphQLClient("127.0.0.1", port_number=guarded.port)
    with pytest.raises(Exception, match=r"Run Id 0{32} not found|RunNotFoundError"):
        client.get_run_status("0" * 32)


NEW_RUN: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("run_config", "status", "tags", "root_run_id", "parent_run_id", "step_keys_to_execute"),
            *("execution_plan_snapshot", "job_snapshot", "parent_job_snapshot", "asset_selection"),
            *("asset_check_selection", "resolved_op_selection", "op_selection", "remote_job_origin"),
            *("job_code_origin", "asset_graph"),
        )
    ),
    "job_name": "books_stream",
    "run_id": None,
}


def test_the_pages_are_shown_and_stay_out_of_frames(guarded: WebServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=ANSWER_SECONDS)
    connection.request("GET", "/runs", headers={"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})
    page = connection.getresponse()
    assert (page.status, page.headers["X-Frame-Options"]) == (200, "SAMEORIGIN")
    assert b"<html" in page.read()
    connection.close()


@pytest.mark.parametrize("origin", [None, "own", ATTACKER, "null", "http://localhost:1"])
def test_a_websocket_of_another_site_is_refused(guarded: WebServer, origin: str | None) -> None:
    sent = guarded.origin if origin == "own" else origin
    address = f"ws://127.0.0.1:{guarded.port}/graphql"
    protocols = [Subprotocol("graphql-ws")]
    if origin in {None, "own"}:
        with connect(address, origin=Origin(sent) if sent else None, subprotocols=protocols) as socket:
            socket.send(json.dumps({"type": "connection_init"}))
            assert json.loads(socket.recv(ANSWER_SECONDS)) == {"type": "connection_ack"}
    else:
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, origin=Origin(str(sent)), subprotocols=protocols)


def test_a_name_of_an_attacker_that_leads_here_is_refused(guarded: WebServer) -> None:
    status, said = guarded.ask("GET", "/server_info", f"attacker.example:{guarded.port}", {})
    assert status == http.HTTPStatus.MISDIRECTED_REQUEST
    assert b"Host = 'attacker.example:" in said
    assert b"web.origins" in said


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd", "a/../../../../dagster.yaml"]
)
@pytest.mark.parametrize("route", ["logs", "download_debug", "notebook?path=", "assets", "icons"])
def test_no_route_leads_to_other_files(guarded: WebServer, route: str, path: str) -> None:
    said = guarded.ask("GET", f"/{route}/{path}", f"127.0.0.1:{guarded.port}", {})[1]
    assert b"root:" not in said
    assert b"run_monitoring" not in said


def test_the_doctor_calls_it_safe(guarded: WebServer) -> None:
    (found,) = [each for each in check_web_servers() if each.check == f"web server on port {guarded.port}"]
    assert (found.level, found.found) == (Level.OK, "refuses what pages of other sites send")


def test_it_listens_on_loopback_only(guarded: WebServer) -> None:
    listeners = list_listeners([guarded.pid, *list_descendants(guarded.pid)])
    assert guarded.port in {listener.port for listener in listeners}
    assert find_reachable(listeners) == []
