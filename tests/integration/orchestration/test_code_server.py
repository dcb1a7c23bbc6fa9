"""The code server: Reload, its runs, and the end of each of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from dagster._grpc.client import DagsterGrpcClient

from lockstep.features.localdev.processes import find_free_ports, is_free
from lockstep.orchestration.code_server import is_inner_server, is_run
from tests.support.descendants import list_descendants
from tests.support.installation import is_listening, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = """
from pathlib import Path
from time import sleep

from dagster import job, op, repository


@op
def wait():
    Path("started").touch()
    try:
        sleep(600)
    finally:
        Path("ended").touch()


@job
def waiting():
    wait()


@repository
def {name}():
    return [waiting]
"""


@dataclass(frozen=True)
class CodeServer:
    """A code server of a folder with a module of a user, as `make up` and the container start it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def write(self, code: str) -> None:
        """Change the user's module."""
        (self.folder / "code_of_a_user.py").write_text(code)

    def list_repositories(self) -> str:
        """Return the names of the repositories, or the error of the code."""
        return DagsterGrpcClient(port=self.port, host="127.0.0.1").list_repositories()

    def reload(self) -> str:
        """Reload as Dagster's web server does, and return the repositories."""
        DagsterGrpcClient(port=self.port, host="127.0.0.1").reload_code(timeout=120)
        return self.list_repositories()

    def list_below(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in list_descendants(self.process.pid)]

    def list_inner(self) -> list[psutil.Process]:
        return [process for process in self.list_below() if is_inner_server(process)]

    def launch(self) -> psutil.Process:
        """Launch a run and return its process."""
        server = {"host": "127.0.0.1", "port": self.port, "location_name": "code"}
        workspace = self.folder / "workspace.yaml"
        workspace.write_bytes(msgspec.yaml.encode({"load_from": [{"grpc_server": server}]}))
        command = [sys.executable, "-m", "dagster", "job", "launch", "-w", str(workspace), "-j", "waiting"]
        subprocess.run(command, cwd=self.folder, env=make_environment(self.folder), check=True, capture_output=True)
        wait_until((self.folder / "started").exists, "the run works")
        (run,) = filter(is_run, self.list_inner()[0].children())
        return run


def make_environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DAGSTER_HOME": str(folder / "home")}


def start(folder: Path, port: int) -> CodeServer:
    """Start a code server, and wait until it answers."""
    location = ("-p", str(port), "-h", "127.0.0.1", "-m", "code_of_a_user", "-d", ".", "--location-name", "code")
    command = [sys.executable, "-m", "lockstep.orchestration.code_server", *location]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=make_environment(folder), stdout=log, stderr=log)
    wait_until(lambda: process.poll() is not None or is_listening(port), "the code server answers")
    assert process.poll() is None, (folder / "server.log").read_text()
    return CodeServer(folder, port, process)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CodeServer]:
    (tmp_path / "home").mkdir()
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    (tmp_path / "home" / "dagster.yaml").write_bytes(msgspec.yaml.encode({"run_coordinator": coordinator}))
    (tmp_path / "code_of_a_user.py").write_text(CODE.format(name="first"))
    started = start(tmp_path, find_free_ports(1)[0])
    family = {process.pid: process for process in started.list_below()}
    try:
        yield started
    finally:
        family |= {process.pid: process for process in started.list_below()}
        started.process.kill()
        started.process.wait()
        for process in family.values():
            if process.is_running():
                process.kill()


def test_reload_loads_the_code_again_and_runs_of_the_earlier_code_go_on(server: CodeServer) -> None:
    run = server.launch()
    server.write(CODE.format(name="second"))
    assert "second" in server.reload()
    server.write("1 / 0")
    assert "ZeroDivisionError" in server.reload()
    assert run.is_running()

    server.process.terminate()

    assert server.process.wait(90) is not None
    assert (server.folder / "ended").exists()  # cleanly, and before its server
    wait_until(lambda: is_free(server.port), "the port is free")
    wait_until(lambda: not run.is_running(), "no run is left")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["inner server", "newest inner server", "unseen inner server", "proxy", "whole"])
def test_a_code_server_can_start_again_whichever_of_its_processes_is_killed(server: CodeServer, killed: str) -> None:
    run = server.launch()
    watch = psutil.Process(server.process.pid)
    if killed == "unseen inner server":
        watch.suspend()  # on a busy machine an inner server may end before its first check
    if killed in {"newest inner server", "unseen inner server"}:
        server.reload()  # the earlier inner server has the run
    inner = max(server.list_inner(), key=psutil.Process.create_time)
    proxy = inner.parent()
    assert proxy is not None

    {"proxy": proxy, "whole": watch}.get(killed, inner).kill()
    if killed == "unseen inner server":
        watch.resume()

    assert server.process.wait(240) != 0
    wait_until(lambda: is_free(server.port), "the port is free")
    assert run.is_running()
    again = start(server.folder, server.port)
    try:
        assert "first" in again.list_repositories()
    finally:
        again.process.terminate()
        again.process.wait(90)
        run.kill()
