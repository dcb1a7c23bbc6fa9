"""One fold over small batches in memory: `python -m benchmarks.live_shape_side FOLD SHAPE FOLDER`.

A line with the number of a core asks for a turn; its figures are the answer. The first turn reads the snapshots.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from unittest import mock

import msgspec

from benchmarks.engine_files import Batch, StreamInMemory, make_batches
from benchmarks.live_shape import Shape, Turn
from benchmarks.sensors import map_sensors, ready_sensors, sensors, table_sensors
from lockstep.declare.stream import AnyStream
from lockstep.engine.executor import task
from lockstep.engine.protocol import RangeResult

FOLDS: Mapping[str, Callable[[str], AnyStream]] = {
    "by hand, dict": sensors,
    "by hand, MapState": map_sensors,
    "TableFold": table_sensors,
    "ColumnFold": ready_sensors,
}
HOUR = "2026-01-01T00"


class StateClock:
    """Measures the CPU time in which a task saves its states."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._save: Callable[..., tuple[RangeResult, ...]] = vars(task)["_save_states"]

    def save(self, *arguments: object) -> tuple[RangeResult, ...]:
        """Save the states of a task."""
        began = time.thread_time()
        results = self._save(*arguments)
        self.seconds += time.thread_time() - began
        return results


class ShapeSide:
    """The turns of a fold."""

    def __init__(self, fold: str, shape: Shape, folder: Path) -> None:
        self._stream = StreamInMemory(FOLDS[fold](r"sensors\..+"), folder, hour=HOUR)
        self._state_files: dict[str, int] = {}
        self._turns = plan_turns(shape)

    def run_turn(self) -> Turn:
        """Fold the batches of a turn."""
        batches = next(self._turns)
        clock = StateClock()
        with mock.patch.object(task, "_save_states", clock.save):
            began = time.process_time()
            for batch in batches:
                self._stream.fold(batch)
            seconds = time.process_time() - began
        logs = chain.from_iterable(batch.values() for batch in batches)
        messages = list(chain.from_iterable(logs))
        return Turn(
            messages=len(messages),
            bytes=sum(len(message.sent_value or b"") for message in messages),
            cpu_seconds=seconds,
            state_cpu_seconds=clock.seconds,
            state_bytes=self._count_new_state(),
        )

    def _count_new_state(self) -> int:
        """Count the bytes of durable files that are new since the last turn."""
        found = {entry.name: entry.stat().st_size for entry in os.scandir(self._stream.job.state) if entry.is_file()}
        new = sum(size for name, size in found.items() if name not in self._state_files)
        self._state_files |= found
        return new


def plan_turns(shape: Shape) -> Iterator[Sequence[Batch]]:
    """The batches of each turn; the first turn is one batch of all snapshots."""
    size = shape.make_size()
    batches = make_batches(size, chain([size.sessions], repeat(shape.messages)))
    yield list(islice(batches, 1))
    while turn := list(islice(batches, shape.batches)):
        yield turn


def pin_threads(core: int) -> None:
    """Run all threads of this process on one core."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def main() -> None:
    """Take turns until the standard input ends."""
    fold, shape, folder = sys.argv[1:]
    side = ShapeSide(fold, msgspec.json.decode(shape, type=Shape), Path(folder))
    for line in sys.stdin:
        pin_threads(int(line))
        print(msgspec.json.encode(side.run_turn()).decode(), flush=True)


if __name__ == "__main__":
    main()
