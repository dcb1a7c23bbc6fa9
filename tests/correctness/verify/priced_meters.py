"""Meters whose rows and states depend on a table of tariffs, which changes under their runs and between them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from deltalake import write_deltalake

from lockstep import Lookup, Record
from lockstep.integrity.resume_options import IntegrityLost
from tests.correctness.verify.clean_meters import CleanMeters
from tests.correctness.verify.clean_tables import Made
from tests.correctness.verify.meters import LateMeters, Meter, Meters, Reading, TimedMeters, Total, WatermarkedMeters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lockstep.engine.driver.planner import BatchPlan
    from lockstep.engine.driver.spark_job import Runner
    from lockstep.engine.protocol import TaskResult


class Tariff(msgspec.Struct, frozen=True):
    """What a value costs."""

    value: int
    amount: int


TARIFFS = Lookup("tariffs", "tariffs", key="value", row=Tariff)


def price(value: int) -> int:
    """What a value costs now; nothing where the table does not have it."""
    tariff = TARIFFS.get(value)
    return -1 if tariff is None else tariff.amount


def priced(rows: Iterable[Total], value: int) -> Iterable[Total]:
    """The rows, each with a price."""
    for row in rows:
        yield Total(row.what, row.number, [*row.values, price(value)])


class PricedMeters(Meters):
    """Prices in rows and in states."""

    def on_snapshot(self, message: Reading, record: Record, previous: Meter | None) -> Meter:
        """The state remembers a price."""
        meter = super().on_snapshot(message, record, previous)
        meter.values.append(price(message.value))
        return meter

    def on_update(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """The price of the value."""
        return priced(super().on_update(state, message, record), message.value)

    def on_end(self, state: Meter) -> Iterable[Total]:
        """The price of the number of values."""
        return priced(super().on_end(state), len(state.values))


class PricedTimedMeters(PricedMeters, TimedMeters):
    """Timers too."""

    def on_timer(self, state: Meter, deadline_us: int) -> Iterable[Total]:
        """The state remembers a price, too."""
        rows = list(priced(super().on_timer(state, deadline_us), len(state.values)))
        state.values.append(price(state.fired % 6))
        return rows


class PricedLateMeters(PricedTimedMeters, LateMeters):
    """Late messages too."""

    def on_late(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """The price of the late value."""
        return priced(super().on_late(state, message, record), message.value)


class PricedWatermarkedMeters(PricedTimedMeters, WatermarkedMeters):
    """With a watermark of their own."""


PRICED: dict[type, PricedMeters] = {
    Meters: PricedMeters(),
    TimedMeters: PricedTimedMeters(),
    LateMeters: PricedLateMeters(),
    WatermarkedMeters: PricedWatermarkedMeters(),
}


class PricedTables(CleanMeters):
    """Makes one table from a seed."""

    def __init__(self, seed: int, bootstrap_servers: str, root: Path) -> None:
        super().__init__(seed, bootstrap_servers, root)
        self._chance = random.Random(seed)  # noqa: S311  # chance that can be had again
        stream = self._made.runs.stream
        transform = PRICED[type(stream.transform)]
        stream = dataclasses.replace(stream, transform=transform, lookups=(TARIFFS,))
        self._made = Made(self._made.runs.of(stream), self._made.told)

    def make(self) -> Made:
        """Topics, then three runs with messages between them; before each job the tariffs may change."""
        self.create_topics()
        self._write()
        for _ in range(3):
            self._send()
            with suppress(IntegrityLost):
                self._made.runs.run(around=self._changing)
                continue
            self._made.told.append("halted")
            break
        return self._made

    def _changing(self, runner: Runner) -> Runner:
        def run(plan: BatchPlan) -> Sequence[TaskResult]:
            if self._chance.random() < 0.5:
                self._write()  # too late for this batch
            return runner(plan)

        return run

    def _write(self) -> None:
        amounts = {value: self._chance.randrange(1, 1000) for value in range(6) if self._chance.random() < 0.9}
        rows = pa.table({"value": [*amounts], "amount": [*amounts.values()]})
        write_deltalake(self._made.runs.folders.root / "tariffs", rows, mode="overwrite")
