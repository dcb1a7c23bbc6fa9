"""The bare loop writes the rows of the plain fold, so its speed is not a shortcut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from benchmarks import bare
from benchmarks.feed import feed
from benchmarks.systems import Task, parse_task
from benchmarks.verify import digest_of, expected
from benchmarks.workload import Size

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker


@pytest.fixture
def size(topic_family: str) -> Size:
    return Size(topic_family.replace("_", "-"), 4_000, topics=2, sessions=10, rows=20)


def test_the_bare_loop_writes_the_rows_of_the_plain_fold(broker: Broker, size: Size, tmp_path: Path) -> None:
    assert feed(broker.bootstrap_servers, size, tmp_path)
    task = Task(broker.bootstrap_servers, size.pattern, tmp_path / "rows", batch_messages=1_500)
    bare.run(task)
    assert digest_of(task.output) == expected(size)
    files = sorted(task.output.iterdir())
    assert len(files) == 3
    assert pq.read_schema(files[0]).names == list(bare.SCHEMA.names)


@pytest.mark.slow
def test_what_was_fed_is_not_fed_again(broker: Broker, size: Size, tmp_path: Path) -> None:
    assert feed(broker.bootstrap_servers, size, tmp_path)
    assert not feed(broker.bootstrap_servers, size, tmp_path)


@pytest.mark.slow
def test_a_feed_without_its_marker_begins_anew(broker: Broker, size: Size, tmp_path: Path) -> None:
    assert feed(broker.bootstrap_servers, size, tmp_path)
    (tmp_path / f"fed-{size.name}").unlink()
    assert feed(broker.bootstrap_servers, size, tmp_path)


def test_a_task_survives_the_command_line(tmp_path: Path) -> None:
    task = Task("127.0.0.1:9092", r"sensors\.smoke\.\d+", tmp_path, 1_000)
    assert parse_task(task.arguments()) == task
