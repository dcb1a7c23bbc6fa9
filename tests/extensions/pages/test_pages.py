"""The code of the pages below docs/how-to-add runs in a user's project."""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from lockstep.model.field_types import EXTENSION_POINTS
from lockstep.operations.alarms import HealthFacts
from tests.extensions.pages.conftest import PAGES
from tests.streams.tutorial.conftest import ROOT
from tests.support.feed import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.streams.tutorial.conftest import Reader


def test_no_python_of_the_pages_is_left_untested(blocks: dict[str, str]) -> None:
    written = sum(page.read_text().count("```python") for page in PAGES)
    assert written == len(blocks)


def test_each_extension_point_has_a_page_that_derives_a_class_from_it() -> None:
    pages = {page.stem: page.read_text() for page in PAGES}
    for point in EXTENSION_POINTS:
        assert f"({point.__name__}" in pages[point.__name__.lower()]


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "how-to-add" / "README.md").read_text()
    assert [page.name for page in PAGES if f"({page.name})" not in index] == ["README.md"]


def test_the_facts_of_the_page_are_those_of_a_stream() -> None:
    page = (ROOT / "docs" / "how-to-add" / "alarm.md").read_text()
    facts = HealthFacts(stream="machines", desired=None)
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert "lag_messages" in names
    assert [name for name in names if not hasattr(facts, name)] == []


def test_the_unit_tests_of_the_pages_pass_and_can_fail(project: Reader) -> None:
    assert "10 passed" in project.does("python", "-m", "pytest", "-q", "tests")
    stream = project.folder / "assets" / "machines.py"
    stream.write_text(stream.read_text().replace("max(state.highest, message.temperature)", "state.highest"))
    assert "1 failed, 9 passed" in project.does("python", "-m", "pytest", "-q", "tests", code=1)


def test_the_code_passes_a_strict_type_checker(project: Reader, mypy_cache: Path) -> None:
    house = ("--config", str(ROOT / "pyproject.toml"), "--config", f"src=['.', '{ROOT / 'platform'}']")
    project.does("ruff", "check", *house, "--ignore", "D102,D103,FBT,INP001", "my_platform", "assets")
    project.does("ruff", "format", "--check", *house, "my_platform", "assets")
    project.does(
        "mypy",
        "--strict",
        "--explicit-package-bases",
        "--config-file=",
        "--cache-dir",
        str(mypy_cache),
        "assets",
        "my_platform",
    )


def test_a_command_of_an_extension_is_one_of_lockstep_until_it_is_broken(project: Reader) -> None:
    assert "Example: lockstep margin machines" in project.does("lockstep", "margin", "--help")
    command = project.folder / "my_platform" / "margin_command.py"
    command.write_text(command.read_text().replace("def margin(", "def verify("))
    said = project.does("lockstep", "verify", "--help")
    assert "my_platform.margin_command cannot be used: LockstepError: the command verify is there already" in said
    assert "Example: lockstep verify order_books" in said


@pytest.mark.slow
def test_a_stream_of_these_parts_runs_is_checked_and_proven(project: Reader, broker: Broker, tmp_path: Path) -> None:
    feed = Feed(broker.bootstrap_servers, f"machines.{uuid.uuid4().hex[:8]}")
    topic = feed.create("halls")
    feed.send(topic, [b"1|70.0", b"2|72.5", b"3|71.0"], key="press")
    feed.send(topic, [b"1|1200.0"], key="oven")
    exported = {
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "LOCKSTEP_TABLE_ROOT": str(tmp_path / "tables"),
        "LOCKSTEP_LOCAL_ROOT": str(tmp_path / "local"),
        "LOCKSTEP_SPARK__MASTER": "local[1]",
    }
    project = dataclasses.replace(project, environment=exported)
    stream = project.folder / "assets" / "machines.py"
    stream.write_text(stream.read_text().replace(r"machines\..+", feed.pattern))
    project.does("lockstep", "run", "machines", "--available-now")
    rows = json.loads(project.does("lockstep", "query", "machines", "--json"))["rows"]
    assert len(rows) == 4
    margin = json.loads(project.does("lockstep", "margin", "machines", "--json"))
    assert margin == {"stream": "machines", "batch": 1, "partitions": 1}
    assert "proven" in project.does("lockstep", "verify", "machines")
    checked = project.does("lockstep", "check", "machines", "--json", code=1)
    results = {each["rule"]: each["outcome"] for each in json.loads(checked[checked.index("{") :])["results"]}
    assert (results["below_melting"], results["mild"]) == ("failed", "passed")
    feed.send(topic, [b"4|70.0|ok"], key="press")
    alarm = project.folder / "my_platform" / "margin_alarm.py"
    alarm.write_text(alarm.read_text().replace("10_000", "0"))
    status = project.does("lockstep", "status", "machines", "--json")
    assert [each for each in json.loads(status)["alarms"] if each["kind"] == "margins.backlog"] == [
        {
            "kind": "margins.backlog",
            "severity": "warning",
            "problem": "1 messages wait, 0 may",
            "next_step": "lockstep plan machines",
        }
    ]
    refused = project.does("lockstep", "run", "machines", "--available-now", code=3)
    assert "3 fields between bars, expected 2" in refused
