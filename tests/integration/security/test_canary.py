"""A stream runs with unique secrets, which are searched for in all traces of the run."""

from __future__ import annotations

import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.processes import find_free_ports
from tests.integration.security.canary import command_lines, files_with, forms, holds
from tests.integration.security.secured import Secured
from tests.support.installation import ROOT, Installation, Run, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IN_FILE = "canary-in-a-file-7c1e9a"
IN_VARIABLE = "canary-in-a-variable-5b20df"
CANARIES = (IN_FILE, IN_VARIABLE)
USER = "canary-reader"
VARIABLE = "CANARY_OF_THE_KEY"
PAGES = ("environment", "jobs", "stages", "executors", "storage")
ANSWER_SECONDS = 20


@dataclass(frozen=True)
class Watched(Installation):
    """An installation whose Kafka wants a password and a certificate.

    Attributes:
        secured: Its Kafka.
        ui_port: Port of Spark's UI.
        phrase: Reference to the password.
    """

    secured: Secured | None = None
    ui_port: int = 0
    phrase: str = ""

    def settings(self) -> dict[str, str]:
        """Settings with a password in a file and the passphrase of a key in a variable, and all that Spark can show."""
        assert self.secured is not None
        options = {
            **self.secured.sasl("SCRAM-SHA-256", USER).options,
            "ssl.certificate.location": self.secured.file("client.pem"),
            "ssl.key.location": self.secured.file("canary.key"),
        }
        spark = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self.ui_port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": str(self.folder / "events"),
            "spark.logConf": "true",
        }
        (self.folder / "events").mkdir(exist_ok=True)
        return {
            **super().settings(),
            VARIABLE: IN_VARIABLE,
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.secured.broker.address("SASL_SSL"),
            "LOCKSTEP_KAFKA__OPTIONS": json.dumps(options),
            "LOCKSTEP_KAFKA__SECRETS": json.dumps(
                {"sasl.password": self.phrase, "ssl.key.password": f"env:{VARIABLE}"}
            ),
            "LOCKSTEP_SPARK__OPTIONS": json.dumps(spark),
        }

    def page(self, path: str) -> bytes:
        """A page of Spark's UI."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}/{path}", timeout=ANSWER_SECONDS) as answer:
            content: bytes = answer.read()
            return content

    def traces(self) -> list[Path]:
        """Files anywhere in the installation that hold a canary."""
        return files_with([self.folder], CANARIES, but=[self.folder / "canary"])

    def command(self, *arguments: str) -> str:
        """Return the output of a command of lockstep."""
        said = subprocess.run(
            [sys.executable, "-m", "lockstep.cli", *arguments],
            env=self.environment("home"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_SECONDS * 6,
        )
        return said.stdout + said.stderr


@pytest.fixture
def watched(secured: Secured, tmp_path: Path) -> Iterator[Watched]:
    """A separate installation with a separate user."""
    secured.create_user(USER, IN_FILE)
    secured.write_key("canary.key", IN_VARIABLE)
    (tmp_path / "canary").write_text(IN_FILE + "\n")
    (port,) = find_free_ports(1)
    address = secured.broker.bootstrap_servers
    made = Watched(tmp_path, address, secured=secured, ui_port=port, phrase=f"file:{tmp_path}/canary")
    yield made
    made.kill_runs()


@pytest.mark.slow
def test_a_secret_stands_nowhere_but_where_it_was_put(watched: Watched) -> None:
    watched.produce("canary", 0, 300)
    lines: dict[int, bytes] = {}
    run = watched.materialize(available_now=False)

    def reads() -> bool:
        run.look()
        lines.update(command_lines())
        return watched.position("canary") == 300 or run.process.poll() is not None

    wait_until(reads, "the stream has read the topic")
    assert run.process.poll() is None, run.said()
    shown = pages_of(watched)
    while_it_runs = watched.traces()
    run.process.send_signal(signal.SIGINT)
    run.wait()

    # The search covered all expected places.
    assert {"environment", "api/v1/applications"} <= shown.keys()
    assert b"spark.eventLog.dir" in shown["environment"]
    assert len(run.family) >= 2, "a JVM and its Python workers"
    assert set(run.family) & set(lines)
    assert list(watched.folder.glob("home/dagster/history/**/*.db")), "Dagster's runs"
    assert list(watched.folder.glob("home/dagster/storage/**/*.err")), "what the run printed"
    assert list(watched.folder.glob("events/*")), "Spark's event log"

    assert [name for name, page in shown.items() if holds(page, CANARIES)] == []
    assert [line for line in lines.values() if holds(line, CANARIES)] == []
    assert (while_it_runs, watched.traces()) == ([], [])
    said = watched.command("settings", "--json")
    assert "kafka.secrets" in said
    assert not holds(said.encode(), CANARIES)


def test_a_secret_stands_in_no_error_either(watched: Watched) -> None:
    refused: Secured | None = watched.secured
    assert refused is not None
    refused.create_user(USER, "another-one")

    run = watched.materialize(available_now=True)

    assert run.wait() != 0
    assert "authentication failed at" in run.said()
    assert watched.traces() == []
    assert all_said(watched, run) == []


def pages_of(watched: Watched) -> dict[str, bytes]:
    """Return the pages of Spark's UI about its configuration and work, by path."""
    shown = {page: watched.page(f"{page}/") for page in PAGES}
    applications = watched.page("api/v1/applications")
    (application,) = json.loads(applications)
    base = f"api/v1/applications/{application['id']}"
    more = {f"{base}/{part}": watched.page(f"{base}/{part}") for part in ("environment", "jobs", "executors", "stages")}
    return {**shown, "api/v1/applications": applications, **more}


def all_said(watched: Watched, run: Run) -> list[str]:
    """Return outputs that contain a canary."""
    status = watched.command("status", "order_books")
    return [text for text in (run.said(), status) if holds(text.encode(), CANARIES)]


@pytest.mark.parametrize("form", range(len(forms(IN_FILE))))
def test_the_search_finds_a_planted_canary_in_every_form(form: int, tmp_path: Path) -> None:
    planted = tmp_path / "deep" / "below" / "file.bin"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(os.urandom(100) + forms(IN_FILE)[form] + os.urandom(100))
    (tmp_path / "other").write_text("nothing here")
    assert files_with([tmp_path], CANARIES) == [planted]


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
def test_the_search_finds_a_canary_inside_a_longer_encoded_text(before: str) -> None:
    assert holds(base64.b64encode(f"{before}{IN_FILE} and more".encode()), CANARIES)


def test_the_search_finds_a_canary_in_a_database_in_a_name_and_between_two_reads(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.execute("create table runs (body text)")
        database.execute("insert into runs values (?)", (json.dumps({"phrase": IN_VARIABLE}),))
    (tmp_path / f"log-{IN_FILE}").touch()
    (tmp_path / "long").write_bytes(b"x" * ((1 << 20) - 5) + IN_FILE.encode())
    assert {path.name for path in files_with([tmp_path], CANARIES)} == {"runs.db", f"log-{IN_FILE}", "long"}


def test_the_search_finds_a_canary_on_a_command_line() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", IN_FILE], stdin=subprocess.PIPE) as process:
        wait_until(lambda: holds(command_lines().get(process.pid, b""), CANARIES), "the process has started", 30)
        process.kill()
