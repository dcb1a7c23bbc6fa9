"""Small batches as a live stream has them, folded in memory by each fold, with the extension and without it.

All variants are processes that live through the whole measurement and wait for their turns. In a round each folds the
same batches on the same core. The order is reversed and the core changed from round to round.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.rounds import WrongRowsError
from benchmarks.systems import STREAM, environment
from benchmarks.verify import digest_of
from benchmarks.workload import Size

FOLDS = ("by hand, dict", "by hand, MapState", "TableFold", "ColumnFold")
WHOLE = "by hand, dict"
"""Its state is saved whole, so the goals are not its own."""
TASK_RATIO_MAX = 1.3
STATE_BYTES_MAX = 2.0
ROUNDS_MAX = 39


class Shape(msgspec.Struct, frozen=True):
    """A live stream.

    Attributes:
        messages: Messages of a batch.
        sessions: Sessions.
        rows: Rows of a session.
        batches: Batches of a turn.
    """

    messages: int
    sessions: int
    rows: int
    batches: int

    @property
    def name(self) -> str:
        """Name of the figures."""
        return f"{self.messages:,} a batch, {self.sessions:,} sessions of {self.rows:,} rows"

    def make_size(self) -> Size:
        """The workload: more messages than any number of rounds reads."""
        messages = self.sessions + self.messages * self.batches * (ROUNDS_MAX + 1)
        return Size("live", messages, sessions=self.sessions, rows=self.rows)


SMALL = Shape(500, sessions=200, rows=200, batches=20)
MIDDLE = Shape(2_500, sessions=200, rows=200, batches=10)
MANY = Shape(2_500, sessions=100_000, rows=2, batches=5)
LARGE = Shape(500, sessions=40, rows=2_000, batches=10)
SHAPES = {"small": SMALL, "middle": MIDDLE, "many": MANY, "large": LARGE}


class Turn(msgspec.Struct, frozen=True):
    """Figures of a side in a turn.

    Attributes:
        messages: Messages that it folded.
        bytes: Bytes of these.
        cpu_seconds: CPU time of its tasks.
        state_cpu_seconds: Of these, saving the states.
        state_bytes: Bytes of new durable files of the states.
    """

    messages: int
    bytes: int
    cpu_seconds: float
    state_cpu_seconds: float
    state_bytes: int


@dataclass(frozen=True)
class LiveShape:
    """Settings of the measurement.

    Attributes:
        shapes: The streams.
        folds: The folds, of `FOLDS`.
        rounds: Rounds that count, after one that does not.
    """

    shapes: Sequence[Shape] = tuple(SHAPES.values())
    folds: Sequence[str] = FOLDS
    rounds: int = 11


@dataclass(frozen=True, order=True)
class Variant:
    """A fold, with the extension or without it."""

    fold: str
    native: bool

    @property
    def name(self) -> str:
        """Name of the figures."""
        return self.fold if self.native else f"{self.fold}, without the extension"


class ShapeProcess:
    """A side as a process that waits for its turns."""

    def __init__(self, variant: Variant, shape: Shape, folder: Path) -> None:
        self.output = folder / variant.name.replace(" ", "-").replace(",", "")
        encoded = msgspec.json.encode(shape).decode()
        command = [sys.executable, "-m", "benchmarks.live_shape_side", variant.fold, encoded, str(self.output)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment() if variant.native else leave_extension_out(folder),
        )

    def run_turn(self, core: int) -> Turn:
        """Run one turn on a core.

        Raises:
            RuntimeError: The process has ended.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the side has no pipes")
        self._process.stdin.write(f"{core}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the side ended with {self._process.wait()}: {self.output}")
        return msgspec.json.decode(answer, type=Turn)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def leave_extension_out(folder: Path) -> Mapping[str, str]:
    """An environment in which the extension cannot be imported."""
    hidden = folder / "without-extension"
    hidden.mkdir(exist_ok=True)
    (hidden / "lockstep_native.py").write_text('raise ImportError("left out by the benchmark")\n')
    kept = environment()
    return {**kept, "PYTHONPATH": os.pathsep.join([str(hidden), kept["PYTHONPATH"]])}


Turns = Mapping[Variant, Sequence[Turn]]


def measure_live_shape(asked: LiveShape, *, folder: Path, console: Console) -> Record:
    """Run the rounds of each shape, and prove the rows of all variants equal.

    Raises:
        WrongRowsError: Two variants wrote different rows.
    """
    conditions = Conditions.now()
    found: dict[Shape, Turns] = {}
    for number, shape in enumerate(asked.shapes):
        below = folder / str(number)
        below.mkdir()
        found[shape] = _run_rounds(asked, shape, below, console)
    figures = list(chain.from_iterable(make_figures(*each) for each in found.items()))
    details = {shape.name: list_details(turns) for shape, turns in found.items()}
    settings: dict[str, object] = {"rounds": asked.rounds, "shapes": msgspec.to_builtins(list(asked.shapes))}
    return conditions.record("live-shape", settings, figures, [make_panel(*each) for each in found.items()], details)


def list_details(turns: Turns) -> dict[str, object]:
    """All turns by the name of their variant."""
    return {variant.name: msgspec.to_builtins(found) for variant, found in turns.items()}


def _run_rounds(asked: LiveShape, shape: Shape, folder: Path, console: Console) -> Turns:
    variants = [Variant(*each) for each in product(asked.folds, (True, False))]
    cores = sorted(os.sched_getaffinity(0))
    turns: dict[Variant, list[Turn]] = {variant: [] for variant in variants}
    with ExitStack() as stack:
        sides = {variant: stack.enter_context(_start(variant, shape, folder)) for variant in variants}
        for side in sides.values():
            side.run_turn(cores[0])
        for number in range(asked.rounds + 1):
            for variant in variants[:: -1 if number % 2 else 1]:
                turns[variant].append(sides[variant].run_turn(cores[number % len(cores)]))
            shown = (f"{compute_cost(turns[variant][-1]):.1f}" for variant in variants)
            console.print(f"{shape.name}, round {number}, CPU us a message: {', '.join(shown)}")
        _prove(sides)
    return {variant: found[1:] for variant, found in turns.items()}


@contextmanager
def _start(variant: Variant, shape: Shape, folder: Path) -> Iterator[ShapeProcess]:
    side = ShapeProcess(variant, shape, folder)
    try:
        yield side
    finally:
        side.close()


def _prove(sides: Mapping[Variant, ShapeProcess]) -> None:
    digests = {variant: digest_of(side.output / STREAM / "table") for variant, side in sides.items()}
    right = next(iter(digests.values()))
    for variant, digest in digests.items():
        if digest != right:
            raise WrongRowsError(variant.name, right, digest)


def compute_cost(turn: Turn) -> float:
    """CPU microseconds of a message."""
    return turn.cpu_seconds / turn.messages * 1e6


def compute_state_cost(turn: Turn) -> float:
    """CPU microseconds of a message for the states."""
    return turn.state_cpu_seconds / turn.messages * 1e6


def compute_task_ratio(turn: Turn) -> float:
    """CPU time of the tasks to that of reading, folding and rows."""
    return turn.cpu_seconds / (turn.cpu_seconds - turn.state_cpu_seconds)


def make_figures(shape: Shape, turns: Turns) -> list[Figure]:
    """The figures of a shape."""
    figures = []
    for variant, found in turns.items():
        name = f"{shape.name}: {variant.name}"
        figures.append(Figure(f"{name}: a message", median(map(compute_cost, found)), "CPU us"))
        if not variant.native:
            continue
        has_goals = variant.fold != WHOLE
        state_bytes = sum(turn.state_bytes for turn in found) / sum(turn.bytes for turn in found)
        ratio_max = TASK_RATIO_MAX if has_goals and shape == SMALL else None
        bytes_max = STATE_BYTES_MAX if has_goals and shape == MIDDLE else None
        figures += [
            Figure(
                f"{name}: task to reading, folding and rows",
                median(map(compute_task_ratio, found)),
                "",
                ratio_max,
                len(found),
            ),
            Figure(f"{name}: state files, for a byte of input", state_bytes, "B", bytes_max),
        ]
    return figures


def make_panel(shape: Shape, turns: Turns) -> Panel:
    """The cost of a message in each variant with the extension: reading, folding and rows, and the states."""
    shown = {variant: found for variant, found in turns.items() if variant.native}
    labels = [variant.fold for variant in shown]
    saving = [median(map(compute_state_cost, found)) for found in shown.values()]
    whole = [median(map(compute_cost, found)) for found in shown.values()]
    rest = [cost - states for cost, states in zip(whole, saving, strict=True)]
    return Panel(
        kind="bars",
        title=shape.name,
        x_label="fold",
        y_label="CPU us a message",
        series=[Series("reading, folding and rows", rest, labels=labels), Series("states", saving, labels=labels)],
    )
