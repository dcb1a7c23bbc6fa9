"""The delivery targets of `make up`: Postgres on loopback, and a receiver that stores each alert once."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import order_books
from lockstep.features.localdev.alert_receiver import AlertRow, StoredAlerts
from lockstep.features.localdev.local_platform import MOVES_TOPIC, OUTPUTS
from lockstep.features.localdev.local_postgres import DATABASE, USER, make_address
from lockstep.features.localdev.processes import find_free_ports, start_child
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALERTS = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6)
"""Ids in requests; a request after a failure repeats ids of earlier requests."""


def make_rows(ids: Sequence[int]) -> list[AlertRow]:
    return [AlertRow(str(number), "s", msgspec.Raw(b'{"value": "1"}')) for number in ids]


def read_ids(path: Path) -> list[str]:
    return [msgspec.json.decode(line, type=AlertRow).id for line in path.read_bytes().splitlines()]


@settings(max_examples=20)
@given(before=ALERTS, cut=st.integers(0, 30), after=ALERTS)
def test_each_alert_is_stored_once_after_any_kill(
    tmp_path_factory: pytest.TempPathFactory, before: list[list[int]], cut: int, after: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("alerts") / "alerts.jsonl"
    alerts = StoredAlerts(path)
    for ids in before:
        alerts.add(make_rows(ids))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "0", "session": "s", "value": {}'[:cut])  # a kill in the middle of a line
    alerts = StoredAlerts(path)
    for ids in after:
        alerts.add(make_rows(ids))
    sent = itertools.chain(*before, *after)
    assert read_ids(path) == list(dict.fromkeys(map(str, sent)))


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    """Run a receiver of alerts in a process and return a client of it."""
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "lockstep.features.localdev.alert_receiver", str(tmp_path / "alerts"), str(port)]
    process = start_child(command, folder=Path.cwd(), log=tmp_path / "log")
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def answers() -> bool:
        try:
            client.connect()
        except OSError:
            return False
        client.close()
        return True

    wait_until(answers, "the receiver answers")
    yield client
    client.close()
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"rows": [{"id": "1", "session": "s", "value": {}}], "delivery": "move_alerts"}', 204),
        (b"", 400),
        (b"{", 400),
        (b'{"rows": [{"id": 1}]}', 400),
    ],
)
def test_a_request_is_acknowledged_if_its_rows_are_stored(
    receiver: http.client.HTTPConnection, tmp_path: Path, body: bytes, status: int
) -> None:
    receiver.request("POST", "/", body)
    assert receiver.getresponse().status == status
    assert read_ids(tmp_path / "alerts") == (["1"] if status == 204 else [])


def test_postgres_keeps_its_rows_when_it_is_killed(tmp_path: Path) -> None:
    (port,) = find_free_ports(1)
    command = [sys.executable, "-m", "lockstep.features.localdev.local_postgres", str(tmp_path / "data"), str(port)]

    def connect() -> psycopg.Connection | None:
        try:
            return psycopg.connect(make_address(tmp_path / "data", port), connect_timeout=5, autocommit=True)
        except (psycopg.OperationalError, FileNotFoundError):
            return None

    def start() -> tuple[subprocess.Popen[bytes], psycopg.Connection]:
        process = start_child(command, folder=Path.cwd(), log=tmp_path / "log")
        deadline = time.monotonic() + 60
        while (connection := connect()) is None:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        return process, connection

    (tmp_path / "data.draft").mkdir()  # left by a start that was killed while it created the data
    process, connection = start()
    with connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process, connection = start()
    with connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://{USER}@127.0.0.1:{port}/{DATABASE}", connect_timeout=5)
    assert stat.S_IMODE((tmp_path / "data.password").stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
    process.send_signal(signal.SIGQUIT)
    process.wait()
    shutil.rmtree(tmp_path / "data")


def test_the_platform_has_the_targets_that_the_stream_names() -> None:
    books, moves, alerts = order_books.OUTPUTS
    named = {books.target.connection, alerts.target.url}  # type: ignore[union-attr]  # its kind
    assert named == {f"env:{name}" for name in OUTPUTS}
    assert moves.target.topic == MOVES_TOPIC  # type: ignore[union-attr]  # its kind


def test_an_alert_that_is_refused_for_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = StoredAlerts(tmp_path / "alerts")
    alerts.add(make_rows([1]))

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            alerts.add(make_rows([2]))
    alerts.add(make_rows([2, 3]))
    assert read_ids(tmp_path / "alerts") == ["1", "2", "3"]
