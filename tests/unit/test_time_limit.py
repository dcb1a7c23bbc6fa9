"""Slowness is reported as slowness: Java, a broker, a store, a port and a web server answer with a delay."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError as ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.engine.driver.executors import LOGS_NEEDED, PYTHON_NEEDED, SHORT_PATHS_NEEDED, find_remedy
from lockstep.errors import KafkaError, StoreFailed
from lockstep.features.localdev.producer import produce
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.kafka.diagnostics import LogLine, find_connection_cause
from lockstep.model.position import TopicNamePartition
from lockstep.operations.doctor import machine
from lockstep.settings import KafkaSettings
from lockstep.spark import java
from lockstep.storage import object_store
from lockstep.time_limit import describe_silence, end_process, has_ended_within, run_command, run_within

if TYPE_CHECKING:
    from collections.abc import Iterator

FALSE_CAUSES = re.compile(
    r"install|version|security\.protocol|certificate|READ and|no daemon|is gone|was killed|not reach",
    re.IGNORECASE,
)


@given(who=st.text(), seconds=st.floats(0.001, 1e6), about=st.text())
def test_a_time_out_names_who_and_how_long(who: str, seconds: float, about: str) -> None:
    said = describe_silence(who, seconds, about)
    assert said.startswith(f"{who} did not answer")
    assert said.endswith(f"within {seconds:g} s")
    assert about in said


@settings(max_examples=20, deadline=None)
@given(delay=st.sampled_from((0.0, 0.05, 3.0)), limit=st.sampled_from((0.5, 1.0)))
def test_a_call_and_a_command_are_given_their_time(delay: float, limit: float) -> None:
    if delay < limit:
        run_within(limit, lambda: time.sleep(delay))
        assert run_command(["sleep", str(delay)], "sleep", limit).returncode == 0
        return
    with pytest.raises(TimeoutError):
        run_within(limit, lambda: time.sleep(delay))
    with pytest.raises(TimeoutError, match=describe_silence("sleep", limit)):
        run_command(["sleep", str(delay)], "sleep", limit)


def test_a_process_that_does_not_end_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not has_ended_within(process, 0.05)
        end_process(process, 0.1)
        assert process.returncode < 0


def slow_java(folder: Path, *delays: float) -> Path:
    """Return a Java whose answers take the delays in seconds, in this order."""
    folder.mkdir()
    command = folder / "java"
    for number, delay in enumerate(delays):
        (folder / f"delay-{number}").write_text(f"{delay}\n")
    command.write_text(
        f"#!/bin/sh\nn=0; [ -e {folder}/asked-0 ] && n=1; : > {folder}/asked-$n\n"
        f'read delay < {folder}/delay-$n; [ "$delay" = 0.0 ] || sleep $delay\necho \'openjdk version "21.0.1"\' >&2\n'
    )
    command.chmod(stat.S_IRWXU)
    return command


@settings(max_examples=12, deadline=None)
@given(delays=st.lists(st.sampled_from((0.0, 2.0, 30.0)), min_size=2, max_size=2))
def test_a_java_that_is_slow_is_not_told_as_another_java(
    tmp_path_factory: pytest.TempPathFactory, delays: list[float]
) -> None:
    """A slow first answer must not be reported as an unknown Java release, with the advice to install Java."""
    folder = tmp_path_factory.mktemp("slow") / "java"
    command = slow_java(folder, *delays)
    before = java.ANSWER_SECONDS
    java.ANSWER_SECONDS = (1.0, 4.0)  # type: ignore[assignment]  # fractions for the test
    try:
        found = java.find_java_problem({"PATH": f"{folder}:{os.environ['PATH']}"})
    finally:
        java.ANSWER_SECONDS = before
    answers = delays[0] < 1 or delays[1] < 4
    if answers:
        assert found is None
    else:
        assert found == java.JavaProblem(f"{command} -version did not answer within 1 s, then 4 s", java.AGAIN)


SLOW_LINES = [
    LogLine("REQTMOUT [p-1] [thrd:h:1/bootstrap]: h:1/bootstrap: Timed out ApiVersionRequest in flight"),
    LogLine(
        "FAIL [p-1] [thrd:h:1/bootstrap]: h:1/bootstrap: ApiVersionRequest failed: Local: Timed out: probably due to "
        "broker version < 0.10 (see api.version.request configuration)"
    ),
    LogLine("REQTMOUT [p-1] [thrd:h:1/1]: h:1/1: Timed out 1 in-flight, 0 retry-queued, 0 out-queue"),
    LogLine("FAIL [p-1] [thrd:h:1/1]: h:1/1: 1 request(s) timed out: disconnect"),
    LogLine("1/1 brokers are down", ClientError._ALL_BROKERS_DOWN),  # noqa: SLF001  # the client's name
    LogLine("FAIL [p-1] [thrd:h:1/1]: h:1/1: Disconnected"),
]


@given(st.lists(st.sampled_from(SLOW_LINES), min_size=1).filter(lambda lines: any("imed out" in e.text for e in lines)))
def test_a_slow_broker_is_no_broker_of_another_version(lines: list[LogLine]) -> None:
    cause = find_connection_cause(lines)
    assert cause is not None
    assert not cause.certain
    assert "did not answer a request in time" in cause.problem
    assert not FALSE_CAUSES.search(f"{cause.problem} {cause.next_step.replace('lockstep doctor', '')}")


@pytest.fixture(scope="module")
def silent_broker() -> Iterator[str]:
    """Accept connections, but answer nothing during a test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = list[socket.socket]()

        def accept() -> None:
            with suppress(OSError):  # at the end of the test
                while True:
                    held.append(server.accept()[0])

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)  # first, as clients reconnect
        accepting.join()
        for each in held:
            each.close()


@pytest.mark.parametrize("seconds", [0.5, 6.5])
def test_a_broker_that_answers_late_is_told_as_late(silent_broker: str, seconds: float) -> None:
    """After 5 s the client itself abandons the request, and guesses the broker's version."""
    kafka = KafkaSettings(bootstrap_servers=silent_broker, timeout_seconds=seconds)
    with pytest.raises(KafkaError, match=f"Kafka did not answer about metadata within {seconds:g} s") as failed:
        ClusterAdmin(make_admin_client(kafka), seconds).topic_names()
    assert not FALSE_CAUSES.search(str(failed.value))


def test_a_slow_broker_is_no_matter_of_rights(silent_broker: str) -> None:
    kafka = KafkaSettings(bootstrap_servers=silent_broker, timeout_seconds=0.5)
    with pytest.raises(KafkaError, match=r"Kafka did not show offsets of group g within 0.5 s") as failed:
        ConsumerGroup(kafka, "g").published([TopicNamePartition("t", 0)])
    assert not FALSE_CAUSES.search(str(failed.value))


def test_a_slow_broker_of_the_feed_is_named_with_the_time(silent_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.features.localdev.producer.ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(KafkaError, match=f"Kafka at {silent_broker} did not answer within 0.5 s"):
        produce(silent_broker, "t", [])


@contextmanager
def slow_server(seconds: float, status: int = 404) -> Iterator[int]:
    """Serve HTTP with a delay of each answer, in seconds; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(seconds)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("delay", "is_late"), [(0.0, False), (0.2, False), (2.5, True)])
def test_a_store_that_answers_late_is_waited_for_and_then_told_with_the_time(
    monkeypatch: pytest.MonkeyPatch, delay: float, *, is_late: bool
) -> None:
    monkeypatch.setattr(object_store, "REQUEST_SECONDS", 1)
    with slow_server(delay) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name, value in (("REGION", "x"), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        storage = object_store.ObjectStorage("bucket", wait_seconds=2)
        with pytest.raises(StoreFailed if is_late else FileNotFoundError) as failed:
            storage.read(Path("s3:/bucket/object"))
    said = str(failed.value)
    assert bool(re.search(r"did not answer within \d+ s", said)) is is_late
    assert not FALSE_CAUSES.search(said)


def test_a_web_server_that_answers_late_is_not_told_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ANSWER_SECONDS", 0.2)
    with slow_server(1.0) as port:
        monkeypatch.setattr(machine, "PORTS", {port: "a test"})
        monkeypatch.setattr(machine, "_find_web_server_ports", lambda: iter(()))
        (found,) = machine.check_web_servers()
    assert "did not answer within 0.2 s" in found.found


def test_a_port_whose_server_accepts_late_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ANSWER_SECONDS", 0.2)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # enough to fill the queue of a server that accepts no connection
            each.setblocking(False)  # noqa: FBT003  # the library's
            each.connect_ex(("127.0.0.1", port))
        monkeypatch.setattr(machine, "PORTS", {port: "a test"})
        (found,) = machine.check_ports()
        for each in waiting:
            each.close()
    assert "in use" in found.found


@given(
    sign=st.sampled_from(("[PYTHON_VERSION_MISMATCH] 3.11 and 3.12", "ModuleNotFoundError: No module named 'x'", "")),
    error=st.sampled_from(("OSError: AF_UNIX path too long", "MemoryError", "OSError: [Errno 28] No space left")),
)
def test_a_task_that_cannot_run_is_a_matter_of_versions_only_if_it_names_them(sign: str, error: str) -> None:
    """A too long path of a socket must not lead to advice on Python versions."""
    remedy = find_remedy(f"Job aborted\n{error}\n{sign}")
    if "too long" in error:
        assert remedy == SHORT_PATHS_NEEDED
    else:
        assert remedy == (PYTHON_NEEDED if sign else LOGS_NEEDED)
