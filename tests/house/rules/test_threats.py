"""Each threat of docs/security.md has a guard and existing tests; only the listed modules unpickle."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.syntax import list_nodes, parse_file

if TYPE_CHECKING:
    from pathlib import Path

ROW = re.compile(r"^\| (?P<id>A\d\d) \| (?P<attack>[^|]+) \| (?P<guard>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
THREATS = [f"A{number:02}" for number in range(1, 27)]
UNPICKLES = {
    "engine/driver/spark_job.py": "errors of this driver's own tasks, and the stream that it ships to them",
    "engine/executor/compiled_stream.py": "the stream that the driver ships to its tasks",
    "features/rehearsal/loaded_stream.py": "the stream that a load test hands to its own process, in its folder",
}
LOADS = {"load", "loads", "Unpickler"}


@pytest.fixture(scope="module")
def rows(root: Path) -> dict[str, re.Match[str]]:
    return {row["id"]: row for row in ROW.finditer((root / "docs" / "security.md").read_text())}


def test_every_threat_stands_in_the_table_in_order(rows: dict[str, re.Match[str]]) -> None:
    assert list(rows) == THREATS


@pytest.mark.parametrize("threat", THREATS)
def test_a_threat_has_a_guard_and_tests_that_exist(threat: str, rows: dict[str, re.Match[str]], root: Path) -> None:
    row = rows[threat]
    assert row["attack"].strip()
    assert row["guard"].strip()
    nodes = re.findall(r"`([\w/]+\.py)::(\w+)`", row["tests"])
    assert nodes
    assert [f"{file}::{name}" for file, name in nodes if not has_test(root / "tests" / file, name)] == []


def has_test(path: Path, name: str) -> bool:
    """Return whether a file has a test of this name."""
    if not path.exists():
        return False
    return name in {node.name for node in parse_file(path).body if isinstance(node, ast.FunctionDef)}


def test_nothing_at_rest_is_unpickled(root: Path) -> None:
    library = root / "platform" / "lockstep"
    calls = {
        path.relative_to(library).as_posix()
        for path in library.rglob("*.py")
        for node in list_nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in LOADS
        if isinstance(node.value, ast.Name) and node.value.id in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    }
    assert calls == UNPICKLES.keys()
