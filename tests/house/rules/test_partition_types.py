"""Partitions by topic id and by topic name are two types: mypy refuses a swap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DECLARED = """
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicIdPartition, TopicNamePartition

def use(group: ConsumerGroup, by_id: TopicIdPartition, by_name: TopicNamePartition) -> None:
"""
RIGHT = "    group.published([by_name])\n"
SWAPPED = {
    "an id where a name is wanted": "    group.published([by_id])\n",
    "a name where an id is wanted": "    wanted: TopicIdPartition = by_name\n",
    "a plain pair for a name": '    group.published([("topic", 0)])\n',
    "a plain pair for an id": '    wanted: dict[TopicIdPartition, int] = {("id", 0): 1}\n',
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The error lines of mypy."""
    source = tmp_path_factory.mktemp("swapped") / "swapped.py"
    source.write_text(DECLARED + RIGHT + "".join(SWAPPED.values()))
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--hide-error-context", str(source)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in said.stdout.splitlines() if ": error: " in line]


@pytest.mark.parametrize("case", SWAPPED)
def test_a_swapped_key_is_a_type_error(errors: list[str], case: str) -> None:
    first = len(DECLARED.splitlines()) + 2
    line = first + list(SWAPPED).index(case)
    assert any(f"swapped.py:{line}: error: " in error for error in errors), errors


def test_the_right_key_is_none(errors: list[str]) -> None:
    assert len(errors) == len(SWAPPED), errors
