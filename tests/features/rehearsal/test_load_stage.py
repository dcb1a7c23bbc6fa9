"""A stage of a load test: the rate of its commits, and a stream that ends in its first seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.engine.driver.metrics import BatchReport
from lockstep.features.localdev.processes import interrupt_by_signals
from lockstep.features.rehearsal.load_plan import StagePlan
from lockstep.features.rehearsal.load_stage import (
    Measured,
    Stage,
    add_reported_tasks,
    compute_commit_rate,
    count_task_slots,
    describe_unsent,
)
from lockstep.features.rehearsal.paced_producer import GO, SENT, SentReport
from lockstep.features.rehearsal.process_usage import TreeUsage
from lockstep.model.position import Position
from lockstep.settings import Settings, SparkSettings
from lockstep.table.positions import LedgerStamp, make_unchanged_row
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.ledger import LedgerRow

SENDS = """
import signal, sys, time
from pathlib import Path
folder, go, sent, report = Path(sys.argv[1]), *sys.argv[2:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it reports what it has sent, as the real one does
(folder / "ready").touch()
while not (folder / go).exists():
    time.sleep(0.01)
(folder / sent).write_text(report)
"""
ENDS_SLOWLY = """
import os, signal, sys, time
from pathlib import Path

def end(*_):
    os.kill(int(sys.argv[1]), signal.SIGINT)  # the second Ctrl-C, while this process ends
    time.sleep(1)
    sys.exit()

signal.signal(signal.SIGTERM, end)
Path(sys.argv[2]).touch()
time.sleep(60)
"""
REPORT = SentReport(100, 20.0, 0.0, 0.1)


def in_seconds(began: float, since: float, until: float) -> Measured:
    usage = TreeUsage(until - since, {})
    return Measured(round(began * 1e9), round(since * 1e9), round(until * 1e9), usage, 1.0, REPORT)


def rows(*messages: int) -> list[LedgerRow]:
    """Return the ledger rows of one batch per count, in two partitions."""
    found: list[LedgerRow] = []
    for batch, count in enumerate(messages, 1):
        stamp = LedgerStamp(
            generation=1,
            batch=batch,
            epoch=1,
            committed_at=datetime.now(UTC),
            batch_seconds=1.0,
            restart_cause=None,
        )
        for partition, part in enumerate((count // 2, count - count // 2)):
            position = Position(topic="t", topic_id="id", partition=partition, next_offset=batch)
            found.append(msgspec.structs.replace(make_unchanged_row(stamp, position, None), messages=part))
    return found


def seen(*seconds: float) -> dict[int, int]:
    return {batch: round(at * 1e9) for batch, at in enumerate(seconds, 1)}


def test_the_rate_is_that_from_the_first_to_the_last_commit_of_the_measured_part() -> None:
    measured = in_seconds(began=0, since=10, until=60)
    assert compute_commit_rate(rows(90, 700, 200, 300, 900), seen(5, 11, 31, 51, 71), measured) == 500 / 40


@pytest.mark.parametrize(("committed", "expected"), [((70,), 4_000 / 70), ((25, 100), 6_000 / 100), ((), 0.0)])
def test_a_stream_far_behind_has_the_rate_of_all_its_commits(committed: tuple[float, ...], expected: float) -> None:
    measured = in_seconds(began=0, since=10, until=60)
    assert compute_commit_rate(rows(4_000, 2_000), seen(*committed), measured) == expected


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    plan = StagePlan(label="5/s", per_second=5.0, seconds=60.0, messages=300, size=300)
    return Stage(plan, adding("t"), Settings(table_root=tmp_path), tmp_path)


def test_a_second_interrupt_leaves_no_process_behind(stage: Stage) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def interrupt() -> None:
        with stage.run_process("-c", ENDS_SLOWLY, str(os.getpid()), str(stage.folder / GO)) as process:
            processes.append(process)
            while not (stage.folder / GO).exists():
                time.sleep(0.01)
            raise KeyboardInterrupt

    with interrupt_by_signals(), pytest.raises(KeyboardInterrupt):
        interrupt()
    assert [process.returncode for process in processes] == [0]


def test_a_stream_that_ends_in_the_first_seconds_is_measured_until_then(stage: Stage) -> None:
    report = msgspec.json.encode(REPORT).decode()
    command = [sys.executable, "-c", SENDS, str(stage.folder), GO, SENT, report]
    with subprocess.Popen([sys.executable, "-c", ""]) as stream, subprocess.Popen(command) as producer:
        while not (stage.folder / "ready").exists():
            time.sleep(0.01)
        measured = stage.measure(stream, producer)
    assert (stream.returncode, measured.sent) == (0, REPORT)
    assert 0 <= measured.usage.cores < 1


def test_tasks_on_a_cluster_have_the_cpu_time_that_they_report() -> None:
    """Their processes are not children of the driver: without reports, a fold would seem to use no CPU time."""
    local = TreeUsage(40.0, {"driver": 1.0, "jvm": 2.0, "workers": 0.0}, 5)
    measured = msgspec.structs.replace(in_seconds(0, 10, 50), usage=local)
    found = add_reported_tasks(measured, [report_batch(400, 3.0), report_batch(600, 7.0)], 50.0).usage
    assert (found.cpu_seconds, found.memory_bytes_max) == ({"driver": 1.0, "jvm": 2.0, "workers": 20.0}, 5)
    assert add_reported_tasks(measured, [], 0.0) == measured


@pytest.mark.parametrize(
    ("master", "options", "expected"),
    [
        ("local[3,3]", {}, 3),
        ("local[4]", {"spark.task.cpus": "2"}, 2),
        ("spark://m:7077", {"spark.cores.max": "12"}, 12),
        ("spark://m:7077", {"spark.cores.max": "12", "spark.task.cpus": "3"}, 4),
    ],
)
def test_tasks_at_once_are_those_of_the_settings(master: str, options: dict[str, str], expected: int) -> None:
    assert count_task_slots(SparkSettings(master=master, options=options)) == expected


def test_a_producer_that_ended_early_is_a_failure_of_the_stage() -> None:
    """Otherwise Kafka would seem too slow, despite its error."""
    refused = msgspec.structs.replace(REPORT, failure="Broker: Not enough in-sync replicas")
    assert describe_unsent(refused, 300) == (
        "the producer of the test sent 100 of 300 messages: Broker: Not enough in-sync replicas"
    )
    assert describe_unsent(REPORT, 100) == ""


def report_batch(messages: int, cpu_seconds: float) -> BatchReport:
    zeros: dict[str, object] = dict.fromkeys(BatchReport.__struct_fields__, 0)
    found = {**zeros, "counts": {"messages": messages}, "cpu_seconds": cpu_seconds, "restart": None, "stalls": ()}
    return msgspec.convert(found, BatchReport)
