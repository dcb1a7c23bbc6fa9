"""Counters of the exporter count from its start; a rewind or a forgotten partition never lowers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily

from lockstep.features.health import exporter
from lockstep.features.health.exporter import HealthCollector, StreamSnapshot, count_growth, make_metrics
from lockstep.model.position import TopicIdPartition
from lockstep.operations.alarms import HealthFacts
from lockstep.operations.inspect.health import Health
from lockstep.settings import Settings
from lockstep.table.head import Desired
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

A = TopicIdPartition("a", 0)
B = TopicIdPartition("b", 0)


def look(
    batch: int, positions: Mapping[TopicIdPartition, int], desired: Desired | None = Desired.RUNNING
) -> StreamSnapshot:
    facts = HealthFacts(stream="adding", desired=desired, batch=batch, epoch=1, positions=positions)
    return StreamSnapshot(Health(facts=facts, alarms=(), figures={}), 0.1)


def counts(*looks: StreamSnapshot) -> dict[str, float]:
    before: StreamSnapshot | None = None
    for each in looks:
        before = count_growth(before, each)
    assert before is not None
    families = [each for each in make_metrics([before]) if isinstance(each, CounterMetricFamily)]
    return {sample.name.removeprefix("lockstep_"): sample.value for each in families for sample in each.samples}


def test_a_counter_begins_at_zero_and_adds_what_grew() -> None:
    assert set(counts(look(7, {A: 1_000})).values()) == {0}
    found = counts(look(7, {A: 1_000}), look(9, {A: 1_010}), look(10, {A: 1_011}))
    assert (found["batches_total"], found["committed_offsets_total"], found["claims_total"]) == (3, 11, 0)


def test_a_rewind_a_joined_and_a_forgotten_partition_change_nothing() -> None:
    found = counts(look(7, {A: 100}), look(3, {A: 40}), look(5, {A: 90, B: 1_000_000}), look(6, {B: 1_000_002}))
    assert (found["batches_total"], found["committed_offsets_total"]) == (3, 52)


def test_a_look_at_a_table_that_cannot_be_read_keeps_the_counters() -> None:
    found = counts(look(7, {A: 100}), look(8, {A: 110}), look(0, {}, None), look(9, {A: 115}))
    assert (found["batches_total"], found["committed_offsets_total"]) == (2, 15)
    assert counts(look(0, {}, None)) == {}


def test_a_defect_of_one_look_hides_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Health:
        raise ValueError("torn\nat its end")

    monkeypatch.setattr(exporter, "read_health", fail)
    families = {each.name: each for each in HealthCollector([adding("x")], Settings()).collect()}
    alarms = {each.labels["kind"]: each.value for each in families["lockstep_alarm"].samples}
    assert alarms == {"unreadable": 2.0}
