"""Figures of the runs of the peers: ratios, verdicts, rows of a topic; slow tests: the rows of peers in Python.

Peers in Java are not built here, as that needs Maven: only the benchmark proves their rows.
"""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from benchmarks import bare, workload
from benchmarks.calibration import compute_spread, judge_calibration
from benchmarks.feed import feed
from benchmarks.goals import DOCUMENT
from benchmarks.measure import Usage
from benchmarks.messages import Snapshot
from benchmarks.peers.build import hash_content
from benchmarks.peers.measure import make_record, prepare_peers
from benchmarks.peers.systems import PEERS, make_promises
from benchmarks.peers.table_fold import (
    CHANGE_COLUMNS,
    ORIGIN_COLUMNS,
    Table,
    decode_message,
    decode_table,
    encode_table,
    fold_update,
    read_snapshot,
)
from benchmarks.peers.topic_rows import digest_of_values
from benchmarks.record import Conditions, Record
from benchmarks.report import Report, Result
from benchmarks.rounds import Bench, prove
from benchmarks.verify import COLUMNS, Digest, expected, plain_hash
from benchmarks.workload import SMOKE, Size
from lockstep.errors import EnvironmentProblem

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

SIZE = Size("x", 1_020_000)


def usage(cpu_seconds: float) -> Usage:
    return Usage(0, cpu_seconds, wall_seconds=cpu_seconds / 2, peak_memory_bytes=5_000_000, left_behind=0)


def result(name: str, start_up: float, *runs: float) -> Result:
    return Result(name, 1, "0", [usage(start_up)] * len(runs), [usage(start_up + run) for run in runs])


def record(*doubts: str) -> Record:
    conditions = Conditions.now()
    ours = [result("lockstep", 9, 5, 6), result("ready fold", 9, 4, 4)]
    results = [result("bare", 1, 4, 4), *ours, result("flink-heap", 12, 10, 10)]
    report = Report("", SIZE, SMOKE, 200_000, {}, conditions.hardware, results)
    return make_record(report, conditions, {"kafka-streams": "no Maven"}, doubts)


def test_the_ratio_to_a_peer_is_that_of_the_rounds_without_start_up() -> None:
    found = {(figure.name, figure.unit): figure for figure in record().figures}
    ratio = found["lockstep to flink-heap, median of the pairs", ""]
    assert ratio.value == pytest.approx(0.55)
    assert (ratio.goal, ratio.rounds, ratio.is_met) == (0.65, 2, None)
    assert found["lockstep to flink-heap, quartiles of the pairs apart", ""].value == pytest.approx(0.1)
    assert found["ready fold to flink-heap, median of the pairs", ""].value == pytest.approx(0.4)
    assert found["flink-heap, without start-up", "CPU s per million messages"].value == pytest.approx(10)
    assert found["flink-heap, without start-up", "messages/s"].value == pytest.approx(200_000)
    assert found["flink-heap: start-up", "CPU s"].value == 12


def test_figures_of_a_machine_at_load_have_no_verdict_and_say_so() -> None:
    figures = record("the load before was 9 on 2 cores").figures
    assert {figure.is_met for figure in figures} == {None}
    assert all(figure.name.endswith("(at load)") for figure in figures)


def test_a_peer_that_was_left_out_is_named_in_the_record() -> None:
    assert record().settings["left_out"] == {"kafka-streams": "no Maven"}


def test_a_peer_that_cannot_be_built_is_left_out_with_the_reason() -> None:
    def refuse() -> None:
        raise EnvironmentProblem("no Maven", next_step="install it")

    output = StringIO()
    peers = [
        replace(PEERS["flink-heap"], prepare=lambda: None),
        replace(PEERS["kafka-streams"], prepare=refuse),
    ]
    found, missing = prepare_peers(peers, Console(file=output))
    assert [peer.system.name for peer in found] == ["flink-heap"]
    assert list(missing) == ["kafka-streams"]
    assert "no Maven" in output.getvalue()


def test_rows_of_a_topic_have_the_hash_of_the_plain_fold() -> None:
    row = dict.fromkeys(bare.SCHEMA.names, 0) | {
        **dict.fromkeys(("status", "name", "previous_status", "previous_name", "_session"), "é"),
        **dict.fromkeys(("v0", "v1", "v2", "v3", "previous_v0", "previous_v1", "previous_v2", "previous_v3"), 1.5),
        **dict.fromkeys(("flag", "previous_flag"), True),
        "id": 7,
    }
    packed = msgspec.msgpack.encode(list(row.values()))
    assert digest_of_values([packed]) == Digest(1, plain_hash([row[name] for name in COLUMNS]))


def test_rows_of_the_peers_in_python_have_the_columns_of_the_bare_loop() -> None:
    assert [*CHANGE_COLUMNS, *ORIGIN_COLUMNS] == bare.SCHEMA.names


def test_the_fold_of_the_peers_in_python_is_the_plain_fold_with_state_saved_after_each_message() -> None:
    size = Size("tiny", messages=400, topics=2, sessions=4, rows=3)
    saved: dict[str, bytes] = {}
    found = Digest(0, 0)
    for block in workload.blocks(size):
        for _, value in block.messages:
            message = decode_message(value)
            table: Table = {}
            if isinstance(message, Snapshot):
                table = read_snapshot(message)
            else:
                table = decode_table(saved[message.session])
                for row in fold_update(table, message):
                    found += Digest(1, plain_hash([message.session, message.seq, *row]))
            saved[message.session] = encode_table(table)
    assert found == expected(size)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", ["pyspark", "quix", "bytewax"])
def test_a_peer_writes_the_rows_of_the_plain_fold(name: str, broker: Broker, tmp_path: Path) -> None:
    PEERS[name].prepare()
    feed(broker.bootstrap_servers, SMOKE, tmp_path)
    bench = Bench([PEERS[name].system], 5_000, broker.bootstrap_servers, tmp_path, Console(quiet=True))
    prove(bench.rounds(SMOKE, 1), expected(SMOKE))


def test_a_change_of_any_source_builds_again() -> None:
    assert hash_content([b"a", b"b"]) == hash_content([b"a", b"b"])
    assert len({hash_content([b"a", b"b"]), hash_content([b"ab", b""]), hash_content([b"b", b"a"])}) == 3


@pytest.mark.parametrize(
    ("before", "after", "load", "doubts"), [(1.0, 1.05, 0.5, 0), (1.0, 1.2, 0.5, 1), (1.2, 1.0, 1.5, 2)]
)
def test_figures_are_doubted_when_the_calibration_moved_or_others_used_the_machine(
    before: float, after: float, load: float, doubts: int
) -> None:
    assert len(judge_calibration(before, after, load, cores=2)) == doubts


def test_the_spread_is_that_of_the_quartiles() -> None:
    assert compute_spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)
    assert compute_spread([1.0, 2.0]) == (1.5, 1.0, 2.0)


def test_the_document_says_what_each_peer_promises() -> None:
    assert make_promises() in DOCUMENT.read_text()
