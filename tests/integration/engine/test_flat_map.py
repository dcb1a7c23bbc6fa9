"""A stream without state from Kafka to the table, with its proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import LogOnly, NoIntegrity, Ordered, SessionStart, Strict
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.order_lines import Order, orders
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

FIRST = SessionStart.FIRST_MESSAGE
CLASSES = [Strict(evidence=LogOnly(), session_start=FIRST), Ordered(session_start=FIRST), NoIntegrity()]


@pytest.mark.parametrize("integrity", CLASSES, ids=lambda integrity: type(integrity).__name__)
def test_each_message_of_each_key_gives_its_rows_once_and_in_order(
    feed: Feed, runs: LocalRuns, integrity: IntegrityClass
) -> None:
    runs = runs.of(orders(integrity, pattern=feed.pattern))
    topic = feed.create("orders", partitions=2)
    for first in (0, 6):  # two runs
        for number in range(first, first + 6):
            value = msgspec.json.encode(Order(f"{number}", list(range(number % 3))))
            feed.send(topic, [value], key=f"customer {number}", partition=number % 2)
        runs.run()
    rows = sorted(
        read_table(runs.folders.table).to_pylist(), key=lambda row: (row["_partition"], row["_offset"], row["_row"])
    )
    expected = [
        (number % 2, number // 2, at, f"{number}", at)
        for number in (*range(0, 12, 2), *range(1, 12, 2))
        for at in range(number % 3)
    ]
    assert [(r["_partition"], r["_offset"], r["_row"], r["order"], r["quantity"]) for r in rows] == expected
    assert {row["_session"] for row in rows} == {"0", "1"}
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status is InvariantStatus.PROVEN, report
