"""Meters whose rows and states depend on a table of tariffs, which changes during and between their runs."""

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
    """The price of a value."""

    value: int
    amount: int


TARIFFS = Lookup("tariffs", "tariffs", key="value", row=Tariff)


def price(value: int) -> int:
    """Return the current price of a value, or -1 if the table does not have it."""
    tariff = TARIFFS.get(value)
    return -1 if tariff is None else tariff.amount


def priced(rows: Iterable[Total], value: int) -> Iterable[Total]:
    """Yield the rows, each with a price."""
    for row in rows:
        yield Total(row.what, row.number, [*row.values, price(value)])


class PricedMeters(Meters):
    """Meters with prices in rows and in states."""

    def on_snapshot(self, message: Reading, record: Record, previous: Meter | None) -> Meter:
        """Return a state that remembers a price."""
        meter = super().on_snapshot(message, record, previous)
        meter.values.append(price(message.value))
        return meter

    def on_update(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """Yield rows with the price of the value."""
        return priced(super().on_update(state, message, record), message.value)

    def on_end(self, state: Meter) -> Iterable[Total]:
        """Yield rows with the price of the number of values."""
        return priced(super().on_end(state), len(state.values))


class PricedTimedMeters(PricedMeters, TimedMeters):
    """Timers have prices, too."""

    def on_timer(self, state: Meter, deadline_us: int) -> Iterable[Total]:
        """Return rows with prices; the state remembers a price, too."""
        rows = list(priced(super().on_timer(state, deadline_us), len(state.values)))
        state.values.append(price(state.fired % 6))
        return rows


class PricedLateMeters(PricedTimedMeters, LateMeters):
    """Late messages have prices, too."""

    def on_late(self, state: Meter, message: Reading, record: Record) -> Iterable[Total]:
        """Yield rows with the price of the late value."""
        return priced(super().on_late(state, message, record), message.value)


class PricedWatermarkedMeters(PricedTimedMeters, WatermarkedMeters):
    """Priced meters with a custom watermark."""


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
        self._chance = random.Random(seed)  # noqa: S311  # reproducible
        stream = self._made.runs.stream
        transform = PRICED[type(stream.transform)]
        stream = dataclasses.replace(stream, transform=transform, lookups=(TARIFFS,))
        self._made = Made(self._made.runs.of(stream), self._made.told)

    def make(self) -> Made:
        """Create topics, then run three times with new messages; the tariffs may change before each job."""
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
