"""`lockstep new`: from a topic of a real broker to a stream with a test, in a repository of `lockstep init`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.features.inference.new_stream import NewStream, list_files
from lockstep.features.localdev.producer import create_topic
from lockstep.operations.project import create_project
from lockstep.operations.project_streams import add_to_definitions
from tests.features.inference.feeds import propose, sample_keyed, sample_values

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new repository, set as the working folder, with this broker."""
    folder = tmp_path / "meters"
    create_project(folder, broker.bootstrap_servers)
    monkeypatch.chdir(folder)
    return folder


def produce(broker: Broker, topic: str, messages: list[tuple[str | None, bytes | None]]) -> None:
    create_topic(broker.bootstrap_servers, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for key, value in messages:
        producer.produce(topic, value, key=key)
    assert producer.flush(30) == 0


def call(folder: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'platform'}"}
    arguments = [sys.executable, "-m", *command]
    said = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout


def test_a_topic_becomes_a_stream_with_a_test_that_passes(
    project: Path, broker: Broker, topic_family: str, mypy_cache: Path
) -> None:
    messages: list[tuple[str | None, bytes | None]] = []
    for number in range(1, 30):
        for key in ("north", "south"):
            value = {"type": "snapshot", "seq": 1, "levels": {"a": "1.50"}} if number == 1 else None
            value = value or {"type": "update", "seq": number, "level": f"{number}.25", "at": "2026-11-29T16:00:00Z"}
            messages.append((key, msgspec.json.encode(value)))
    produce(broker, topic_family, messages)
    said = CliRunner().invoke(app, ["new", "levels", "--from", topic_family, "--json"])
    assert said.exit_code == 0, said.output
    found = msgspec.json.decode(said.stdout, type=NewStream)
    assert (found.messages, found.integrity, found.is_named) == (58, "Strict(evidence=Sequence())", True)
    assert found.files == list_files("levels")
    text = (project / "assets" / "levels.py").read_text()
    assert "level: Decimal" in text
    assert "at: datetime" in text
    strict = ("mypy", "--strict", "--explicit-package-bases", "--config-file=", "--cache-dir", str(mypy_cache))
    assert "no issues found" in call(project, *strict, found.files[0])
    assert "5 passed" in call(project, "pytest", "-q")
    assert "(readings, levels)" in (project / "definitions.py").read_text()
    call(project, "lockstep.cli", "try", "levels")
    again = CliRunner().invoke(app, ["new", "levels", "--from", topic_family])
    assert (again.exit_code, "assets/levels.py exists" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("class", "uses this name"),
        ("Levels", "not a lower"),
        ("list", "uses this name"),
        ("a b", "not a lower-case"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(project: Path, name: str, problem: str) -> None:
    said = CliRunner().invoke(app, ["new", name, "--from", "any"])
    assert (said.exit_code, problem in said.stderr) == (1, True)
    assert sorted(path.name for path in (project / "assets").iterdir()) == ["readings.py"]


def test_a_package_of_the_name_would_hide_the_new_file(project: Path) -> None:
    (project / "assets" / "levels").mkdir()
    said = CliRunner().invoke(app, ["new", "levels", "--from", "any"])
    assert (said.exit_code, "assets/levels exists" in said.stderr) == (1, True)
    assert not (project / "assets" / "levels.py").exists()


def test_a_topic_without_json_leaves_no_file(project: Path, broker: Broker, topic_family: str) -> None:
    said = CliRunner().invoke(app, ["new", "levels", "--from", topic_family])
    assert (said.exit_code, "there is no such topic" in said.stderr) == (1, True)
    produce(broker, topic_family, [("a", b"\x00\x01"), ("a", None)])
    said = CliRunner().invoke(app, ["new", "levels", "--from", topic_family])
    assert (said.exit_code, "none of its first 1 messages is JSON" in said.stderr) == (1, True)
    assert sorted(path.name for path in (project / "tests").iterdir()) == ["test_readings.py"]


def test_outside_of_a_project_it_names_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["new", "levels", "--from", "any"])
    assert (said.exit_code, "lockstep init FOLDER" in said.stderr) == (1, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from a import b\nSTREAMS: X = ()\n", "from assets.new import new\nfrom a import b\nSTREAMS: X = (new,)\n"),
        (
            "from assets.a import a\nfrom jobs.b import c\nSTREAMS: X = (a,)  # mine\n",
            "from assets.a import a\nfrom assets.new import new\nfrom jobs.b import c\nSTREAMS: X = (a, new)  # mine\n",
        ),
        ("from a import b\nSTREAMS = make()\n", None),
        ("from a import b\nSTREAMS: X = (\n    b,\n)\n", None),
    ],
)
def test_definitions_name_the_stream_where_they_are_as_written(before: str, after: str | None) -> None:
    assert add_to_definitions(before, "new") == after


def test_generated_files_pass_a_strict_type_checker(tmp_path: Path) -> None:
    """Optional fields, unions by a tag, lists by position, odd names, mixed types, nested optional objects."""
    feeds = {
        "tagged": sample_keyed([("a", {"t": "x" if n % 2 else "y", "n": n, f"f{n % 2}": n}) for n in range(9)]),
        "listed": sample_values([[1, {"a": 2}, "x"], [1, "y", "z", "x"]] * 3),
        "named": sample_values([{"class": 1, "1st": "a", "_x": None, "str": 2.5, "U": 1, "u": 2}] * 3),
        "mixed": sample_values([{"a": 1}, {"a": "x"}, {"a": [1]}, {"a": {"b": {"c": 1}}}, {"a": None}, {}]),
        "nested": sample_values([{"a": {"b": {"c": n, "d": "1.5"}}} if n % 2 else {} for n in range(9)]),
        "whole": sample_values([1, "a", None, [], {}]),
        "session": sample_values([{"s": {"id": n % 2}, "id": n % 2, "n": n // 2} for n in range(12)], key=None),
    }
    files = []
    for name, sample in feeds.items():
        file = tmp_path / f"{name}.py"
        file.write_text(propose(sample).stream)
        files.append(str(file))
    assert "no issues found" in call(ROOT, "mypy", "--strict", "--warn-unreachable", *files)
    assert call(ROOT, "ruff", "check", "--isolated", "--select", "E,F,W", "--line-length", "320", *files)
