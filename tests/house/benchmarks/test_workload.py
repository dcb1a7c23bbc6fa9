"""The workload's bytes never change, and match the benchmark's description."""

import json
from dataclasses import replace
from itertools import islice

import pytest

from benchmarks import workload
from benchmarks.workload import MAIN, SESSIONS, SIZES, SMOKE, TOPICS, Size, interleaved


def messages(size: Size, blocks: int) -> list[dict[str, object]]:
    first = islice(workload.blocks(size), blocks)
    return [json.loads(value) for block in first for _, value in block.messages]


def test_the_smoke_size_is_the_same_bytes_for_ever() -> None:
    right = "9d5ae412a8a401c151b7411ead3cbf95674862219d9ebf7b1573d9a69bc6bb18"
    assert workload.digest(SMOKE) == right


@pytest.mark.slow
def test_an_update_of_the_main_size_has_161_bytes_on_average() -> None:
    values = [value for block in islice(workload.blocks(MAIN), 2_000, 2_100) for _, value in block.messages]
    assert round(sum(map(len, values)) / len(values)) == 161


def test_every_session_starts_with_its_snapshot_and_counts_its_updates() -> None:
    seen: dict[object, int] = {}
    for message in messages(SMOKE, 24):
        session = message["session"]
        sequence = message["seq"]
        assert sequence == seen.get(session, -1) + 1
        assert message["type"] == ("update" if session in seen else "snapshot")
        seen[session] = sequence
    assert len(seen) == SMOKE.sessions


def test_a_snapshot_has_all_rows_whole_and_an_update_three_columns_of_one() -> None:
    for message in messages(SMOKE, 8):
        rows = message["rows"]
        assert isinstance(rows, list)
        columns = len(workload.COLUMNS) if message["type"] == "snapshot" else workload.CHANGED_COLUMNS
        assert len(rows) == (SMOKE.rows if message["type"] == "snapshot" else 1)
        assert {len(row) for row in rows} == {1 + columns}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_size_divides_evenly_over_its_topics(size: Size) -> None:
    assert size.messages_per_topic * size.topics == size.messages
    assert size.sessions_per_topic * size.topics == size.sessions
    assert size.updates > 0


def test_the_sizes_are_those_of_the_description() -> None:
    assert (SMOKE.messages, MAIN.messages, MAIN.topics, MAIN.sessions) == (20_000, 5_000_000, 8, 200)
    assert [size.topics for size in TOPICS] == [1, 8, 64, 400, 1_000]
    assert [size.sessions for size in SESSIONS] == [1_000, 10_000, 100_000, 1_000_000]


@pytest.mark.parametrize("swept", [(TOPICS, "topics"), (SESSIONS, "sessions")], ids=["topics", "sessions"])
def test_only_one_count_grows_in_a_sweep(swept: tuple[tuple[Size, ...], str]) -> None:
    sizes, grows = swept
    assert len({replace(size, name="", **{grows: 1}) for size in sizes}) == 1


def test_messages_that_take_turns_are_those_of_the_blocks_from_any_point_on() -> None:
    size = Size("turns", 12_000, topics=4, sessions=40, rows=3)
    in_blocks: dict[str, list[tuple[bytes, bytes]]] = {}
    for block in workload.blocks(size):
        in_blocks.setdefault(block.topic, []).extend(block.messages)
    turns = list(interleaved(size, 7, 2_900))
    assert [topic for topic, _, _ in turns[:8]] == size.topic_names() * 2
    for name in size.topic_names():
        assert [(key, value) for topic, key, value in turns if topic == name] == in_blocks[name][7:2_900]
