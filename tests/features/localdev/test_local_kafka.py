"""`lockstep kafka`: the bundled broker from an installed package, with lasting topics and named errors."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from lockstep.errors import EnvironmentProblem
from lockstep.features.localdev import local_kafka
from lockstep.features.localdev.local_kafka import run_kafka
from lockstep.features.localdev.processes import find_free_ports, hold_folder_lock, is_free
from lockstep.features.localdev.producer import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_SECONDS = 200


@contextmanager
def kafka(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run the command, wait for its answer, and kill it at the end of the block."""
    command = [sys.executable, "-m", "lockstep.cli", "kafka", "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(f"Kafka answers at 127.0.0.1:{port};"):
                    break
            else:
                pytest.fail("it ended without an answer")
            yield process
        finally:
            process.kill()


def list_topics(port: int) -> set[str]:
    return set(AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=30).topics)


def wait_until_free(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_free(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_topics_stay_over_ctrl_c_and_over_a_kill(tmp_path: Path) -> None:
    (port,) = find_free_ports(1)
    with kafka(tmp_path, port) as process:
        create_topic(f"127.0.0.1:{port}", "first")
        process.send_signal(signal.SIGINT)
        assert process.wait(START_SECONDS) == 0
    assert is_free(port)
    with kafka(tmp_path, port) as process:
        assert "first" in list_topics(port)
        create_topic(f"127.0.0.1:{port}", "second")
        process.kill()
        process.wait()
    wait_until_free(port)  # the kernel kills the broker with its owner
    with kafka(tmp_path, port):
        assert {"first", "second"} <= list_topics(port)
    assert {path.name for path in tmp_path.iterdir()} == {".kafka"}


def test_a_port_in_use_is_named_with_its_process(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "lockstep.cli", "kafka", "--port", str(port)]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be used: " in said.stderr
    assert "listens there (process " in said.stderr
    assert f"lockstep kafka --port {port + 1}" in said.stderr


@pytest.mark.usefixtures("own_signals")
def test_a_folder_in_use_is_named(tmp_path: Path) -> None:
    with hold_folder_lock(tmp_path), pytest.raises(Exception, match=f"another command works in {tmp_path}"):
        run_kafka(tmp_path, find_free_ports(1)[0], print, print)


@pytest.mark.usefixtures("own_signals")
def test_a_first_start_archives_classes_and_starts_without_if_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archiver of Spark's classes runs in parallel with Kafka, and ends with it."""
    said = list[str]()

    def refuse() -> Path:
        raise EnvironmentProblem("no archive of Java classes was made", next_step="go on without")

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("archiving Spark's"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(local_kafka, "find_kafka_archive", lambda: None)
    monkeypatch.setattr(local_kafka, "make_kafka_archive", refuse)
    monkeypatch.setattr(local_kafka, "find_spark_archive", lambda _: None)
    monkeypatch.setattr(local_kafka, "SPARK_ARCHIVER", ("-c", "import time; time.sleep(600)"))
    began = time.monotonic()
    run_kafka(tmp_path / "kafka", find_free_ports(1)[0], print, say)
    assert time.monotonic() - began < 600
    assert [line.partition(",")[0] for line in (said[0], said[-1])] == [
        "first start here: archiving Kafka's classes",
        "archiving Spark's classes meanwhile",
    ]
    assert "no archive of Java classes was made; Kafka starts without the archive" in said
