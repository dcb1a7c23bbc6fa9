"""Removals of absent keys reach the ledger, `lockstep status` and the metrics with their number."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import Envelope, Kind, Ordered, Record, SessionStart, Stream, TableFold, Topics
from lockstep.features.health.exporter import HealthCollector
from lockstep.operations.inspect.status import read_status
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.ledger import read_ledger
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Iterable

Changes = list[tuple[str, int | None]]


class Sent(msgspec.Struct):
    """Values by name; None removes a value."""

    values: Changes
    snapshot: bool = False


class Changed(msgspec.Struct, frozen=True):
    """A changed value."""

    name: str
    value: int | None


class Values(TableFold[Sent, str, int, Changed]):
    """A fold of the values of a session."""

    key = ("name",)
    removed = "value"

    def envelope(self, message: Sent, record: Record) -> Envelope:
        return Envelope(record.key_text, Kind.SNAPSHOT if message.snapshot else Kind.UPDATE)

    def changes(self, message: Sent) -> Changes:
        return message.values

    def emit(self, message: Sent | None, key: str, new: int | None, previous: int | None) -> Changed:
        return Changed(key, new)


STREAM = Stream(
    name="values",
    topics=Topics(pattern="t|u"),
    transform=Values(),
    integrity=Ordered(session_start=SessionStart.FIRST_MESSAGE),
)
CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, None, 1, 2])), max_size=5)
SENT = st.builds(Sent, CHANGES, st.sampled_from([False, False, False, True]))
LOGS = st.lists(st.tuples(st.sampled_from("xy"), SENT), max_size=6)
BATCHES = st.lists(st.fixed_dictionaries({"t": LOGS, "u": LOGS}), min_size=1, max_size=3)
Batch = dict[str, list[tuple[str, Sent]]]


def count_absent(batches: Iterable[Batch]) -> list[dict[str, int]]:
    """Count by batch and topic. The first message of a session and snapshots set its table, and remove nothing."""
    tables: defaultdict[str, dict[str, int] | None] = defaultdict(lambda: None)
    counted = []
    for batch in batches:
        counts = {topic: 0 for topic, sent in batch.items() if sent}
        for topic, sent in batch.items():
            for key, message in sent:
                sets = message.snapshot or tables[topic + key] is None
                table = {} if sets else tables[topic + key]
                assert table is not None
                for name, value in message.values:
                    if value is not None:
                        table[name] = value
                    elif table.pop(name, None) is None and not sets:
                        counts[topic] += 1
                tables[topic + key] = table
        counted.append(counts)
    return counted


@settings(max_examples=max(8, settings().max_examples // 10))
@given(batches=BATCHES)
def test_ledger_status_and_metrics_count_removals_of_absent_keys(batches: list[Batch]) -> None:
    batches = [batch for batch in batches if any(batch.values())] or [{"t": [("x", Sent([("a", None)]))]}]
    with tempfile.TemporaryDirectory() as folder:
        offline = Offline(STREAM, Path(folder))
        offline.run(
            *(
                {topic: [(key, msgspec.json.encode(message)) for key, message in sent] for topic, sent in batch.items()}
                for batch in batches
            )
        )
        counted = count_absent(batches)
        ledger = read_ledger(offline.folders.ledger)
        for number, counts in enumerate(counted, 1):
            assert {row.topic: row.absent_removals for row in ledger if row.batch == number and row.messages} == counts
        newest: dict[str, int] = {}
        for counts in counted:
            newest |= counts
        kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1", timeout_seconds=0.1)
        platform = Settings(table_root=offline.folders.root, kafka=kafka)
        status = read_status(StreamHandle(STREAM, platform))
        assert status.absent_removals == sum(newest.values())
        (metric,) = (each for each in HealthCollector([STREAM], platform).collect() if "absent_removals" in each.name)
        assert [sample.value for sample in metric.samples] == [sum(newest.values())]
