"""The measurements of a partition do not depend on the split of its events into Arrow batches."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from lockstep.features.quality.partitions import (
    END,
    RANGE,
    RANGE_VALUES,
    REACHED,
    ROW,
    MeasuredPartition,
    summarize_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: list[pa.Field[Any]] = [
    pa.field("place", pa.int64()),
    pa.field("at", pa.int64()),
    pa.field("kind", pa.int32()),
    pa.field("row_number", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("topic_id", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("session", pa.string()),
    pa.field("sequence", pa.int64()),
    pa.field("event_time", pa.int64()),
    pa.field("restarts", pa.bool_()),
    pa.field("values", pa.list_(pa.int64())),
    pa.field("violated", pa.list_(pa.int64())),
]
SCHEMA = pa.schema(COLUMNS)
Event = dict[str, Any]


def named(place: int) -> Event:
    return {"place": place, "topic_id": f"id-{place}", "topic": f"topic {place}", "partition": place}


def a_range(place: int, start: int, until: int, batch: int, **counts: int) -> Event:
    known = {"batch": batch, "until": until, "with_rows": -1, "messages": until - start} | counts
    values = [known.get(name, 0) for name in RANGE_VALUES]
    return named(place) | {"at": start, "kind": RANGE, "row_number": until, "offset": batch, "values": values}


def a_row(place: int, at: int, number: int = 0, **columns: Any) -> Event:
    return {"place": place, "at": at, "kind": ROW, "row_number": number, "offset": at, "session": "s"} | columns


def reached(place: int, offset: int) -> Event:
    return named(place) | {"at": -1, "kind": REACHED, "row_number": -1, "offset": -1, "values": [offset]}


def an_end(place: int, at: int, sequence: int) -> Event:
    known = {"session": "s", "sequence": sequence, "values": [0], "topic_id": f"id-{place}"}
    return {"place": place, "at": at, "kind": END, "row_number": -1, "offset": at} | known


def measure(parts: Iterable[list[Event]], rules: Iterable[str] = ("r",)) -> list[MeasuredPartition]:
    batches = (pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts)
    found = [batch["measured"][0].as_py() for batch in summarize_partitions(batches, rules=[*rules], ends_max=3)]
    return [msgspec.msgpack.decode(each, type=MeasuredPartition) for each in found]


def random_events(chance: random.Random, place: int) -> list[Event]:
    """Return adjacent, separate, overlapping and empty ranges, and rows inside and outside of the ranges."""
    events = [reached(place, 5), an_end(place, 3, 2)] if chance.random() < 0.5 else []
    until = 5
    for batch in range(1, chance.randint(2, 12)):
        start = max(0, until + chance.choice([0, 0, 0, 0, 2, -2]))
        until = start + chance.choice([0, 3, 5, 8])
        events.append(a_range(place, start, until, batch, ledger_rows=chance.randint(0, 6)))
        for at in sorted(chance.choices(range(start, until + 2), k=chance.randint(0, 8))):
            columns: Event = {"session": chance.choice("stu"), "sequence": chance.choice([None, at, at // 2, 1])}
            columns |= {"offset": at - chance.choice([0, 0, 0, 1]), "event_time": chance.choice([None, at])}
            columns |= {"violated": chance.choice([None, [1]])}
            events.append(a_row(place, at, chance.randint(0, 1), **columns))
    return sorted(events, key=lambda each: tuple(each[name] for name in ("at", "kind", "row_number", "offset")))


@pytest.mark.parametrize("seed", range(40))
def test_batches_of_any_size_give_the_same_measurements(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # not for cryptography
    events = [event for place in (1, 2, 3) for event in random_events(chance, place)]
    edges = sorted({0, len(events), *chance.choices(range(len(events)), k=chance.randint(1, 30))})
    parts = [events[first:until] for first, until in pairwise(edges)]
    whole = measure([events])
    assert [each.summary.partition for each in whole] == [1, 2, 3]
    assert measure(parts) == measure([[], *([event] for event in events)]) == whole


def test_what_lies_before_an_increment_is_compared_and_not_counted() -> None:
    events = [
        reached(1, 10),
        an_end(1, 9, 4),
        a_range(1, 12, 14, 7),
        a_row(1, 12, sequence=3),
        a_row(1, 13, sequence=5),
    ]
    (found,) = measure([events])
    assert (found.summary.gap_offsets, found.summary.reached, found.summary.batches) == (2, 14, 1)
    assert (found.summary.numbered_rows, found.summary.sequence_restarts) == (2, 1)
    assert [(end.sequence, end.at, end.number) for end in found.ends] == [(5, 13, 0)]


@pytest.mark.parametrize(
    ("restarting", "falls", "repeats"),
    [((), 1, 1), ((12,), 0, 1), ((13,), 1, 0), ((12, 13), 0, 0)],
)
def test_the_rows_of_a_snapshot_restart_the_numbers(restarting: tuple[int, ...], falls: int, repeats: int) -> None:
    """Each offset has rows: a fall or a repeated number cannot be hidden."""
    numbers = {10: 7, 11: 8, 12: 3, 13: 3, 14: 4}
    rows = [a_row(1, at, sequence=number, restarts=at in restarting) for at, number in numbers.items()]
    (found,) = measure([rows])
    assert (found.summary.sequence_falls, found.summary.sequence_repeats) == (falls, repeats)
    assert found.summary.numbered_rows == len(rows)


def test_a_partition_without_a_range_has_its_place_only() -> None:
    (found,) = measure([[a_row(8, 4)]])
    assert (found.place, found.summary.topic_id, found.summary.rows_outside) == (8, "", 1)


def test_each_of_many_rules_has_its_own_bit() -> None:
    rules = [f"rule {number}" for number in range(130)]
    masks = [[1, 0, 0], [1 << 61, 1 << 3, 0], [0, 0, 1 << 5]]
    rows = [a_row(1, at, violated=mask) for at, mask in enumerate([*masks, None])]
    (found,) = measure([rows], rules)
    violated = {rule: count for rule, count in found.summary.violations.items() if count}
    assert violated == {"rule 0": 1, "rule 61": 1, "rule 65": 1, "rule 129": 1}


def test_the_newest_ends_are_kept() -> None:
    rows = [a_row(1, at, session=f"s{at}", sequence=at) for at in range(6)]
    (found,) = measure([rows])
    assert [end.session for end in found.ends] == ["s5", "s4", "s3"]
