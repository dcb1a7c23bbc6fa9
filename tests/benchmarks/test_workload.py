"""The workload is the same bytes for ever, and says what the benchmark's description says."""

import json
from itertools import islice

import pytest

from benchmarks import workload
from benchmarks.workload import KEYS, MAIN, SIZES, SMOKE, TOPICS, Size


def messages(size: Size, blocks: int) -> list[dict[str, object]]:
    first = islice(workload.blocks(size), blocks)
    return [json.loads(value) for block in first for _, value in block.messages]


def test_the_smoke_size_is_the_same_bytes_for_ever() -> None:
    right = "9d5ae412a8a401c151b7411ead3cbf95674862219d9ebf7b1573d9a69bc6bb18"
    assert workload.digest(SMOKE) == right


def test_an_update_of_the_main_size_has_161_bytes_on_average() -> None:
    values = [value for block in islice(workload.blocks(MAIN), 2_000, 2_100) for _, value in block.messages]
    assert round(sum(map(len, values)) / len(values)) == 161


def test_every_session_starts_with_its_snapshot_and_counts_its_updates() -> None:
    seen: dict[object, int] = {}
    for message in messages(SMOKE, 24):
        session, sequence = message["session"], message["seq"]
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
    assert [size.topics for size in TOPICS] == [1, 10, 100, 1_000]
    assert [(size.sessions, size.rows) for size in KEYS] == [
        (1_000, 200),
        (10_000, 200),
        (100_000, 2),
        (1_000_000, 2),
    ]
