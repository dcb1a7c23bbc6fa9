"""A benchmark's result: figures with their goals, the curves to draw, and the conditions of the measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.report import Hardware, commit, hardware, today, versions

RESULTS = Path(__file__).with_name("results")


PAIRED_ROUNDS_MIN = 10
"""A figure of fewer rounds has no verdict: the cost of a message differs by a fifth from round to round."""


class Figure(msgspec.Struct, frozen=True):
    """One measured figure.

    Attributes:
        name: Its name.
        value: Its value.
        unit: Its unit; empty for ratios.
        goal: The upper limit; None where nothing was promised.
        rounds: Rounds of systems in turns from which the figure was computed; None for a figure of other measurements.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    rounds: int | None = None

    @property
    def has_few_rounds(self) -> bool:
        """Whether the rounds are too few for a verdict."""
        return self.rounds is not None and self.rounds < PAIRED_ROUNDS_MIN

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal or with too few rounds."""
        return None if self.goal is None or self.has_few_rounds else self.value <= self.goal


class Series(msgspec.Struct, frozen=True):
    """One curve, or one set of bars whose names are `labels`."""

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    labels: Sequence[str] = ()


class GoalLine(msgspec.Struct, frozen=True):
    """A line to stay below (`axis` y) or left of (`axis` x)."""

    label: str
    axis: Literal["x", "y"]
    at: float


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One set of axes.

    Attributes:
        kind: A curve over a logarithmic count, a curve over a plain quantity, or bars.
        title: Over the axes.
        x_label: With its unit.
        y_label: With its unit.
        series: The curves or bars.
        goals: Lines of goals.
    """

    kind: Literal["sweep", "curve", "bars"]
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    goals: Sequence[GoalLine] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark's result, complete enough to be judged and drawn again.

    Attributes:
        benchmark: Its name.
        date: Day (UTC).
        commit: Commit of the repository; "+" where measured files differed from it.
        versions: Versions of the components.
        hardware: The machine.
        settings: Settings of the run.
        figures: The results.
        panels: The plots.
        details: All measurements behind the figures.
    """

    benchmark: str
    date: str
    commit: str
    versions: dict[str, str]
    hardware: Hardware
    settings: dict[str, object]
    figures: Sequence[Figure]
    panels: Sequence[Panel]
    details: dict[str, object] = {}

    @property
    def file_name(self) -> str:
        """Name of its file, without a suffix; a later one of the same day replaces it."""
        return f"{self.date}-{self.benchmark}"


class Conditions(msgspec.Struct, frozen=True):
    """The circumstances at the start of a benchmark, before it loads the machine itself."""

    date: str
    commit: str
    versions: dict[str, str]
    hardware: Hardware

    @classmethod
    def now(cls) -> Conditions:
        """Read the current conditions of machine and repository."""
        return cls(today(), commit(), versions(), hardware())

    def record(
        self,
        benchmark: str,
        settings: Mapping[str, object],
        figures: Sequence[Figure],
        panels: Sequence[Panel],
        details: Mapping[str, object],
    ) -> Record:
        """The record of a benchmark that was measured under these conditions."""
        return Record(
            benchmark=benchmark,
            date=self.date,
            commit=self.commit,
            versions=self.versions,
            hardware=self.hardware,
            settings=dict(settings),
            figures=figures,
            panels=panels,
            details=dict(details),
        )


def save(record: Record, folder: Path) -> Path:
    """Write a record as <date>-<benchmark>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.file_name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    return path
