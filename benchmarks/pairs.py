"""lockstep against as many bare loops as cores, in pairs of slices at the same moment.

Both sides live through the whole run and wait between slices. In a slice each folds one batch of the same size, all
of its threads pinned to a core of its own, and from pair to pair the cores are swapped: what neighbours, the clock of
the processor or one of the cores do to one side, they do to the other. One after the other, the same code against
itself spreads by 10 %; at the same moment with swapped cores its median was 1.003. Start-up and the first batches are
apart.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console

from benchmarks.calibration import compute_spread, judge_calibration, mark_doubtful, spin
from benchmarks.feed import forget_positions
from benchmarks.goals import CPU_MAX, RATIO_MAX
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.rounds import WrongRowsError
from benchmarks.systems import DONE, LOCKSTEP, REFERENCE, System, Task, environment
from benchmarks.verify import Digest, digest_of
from benchmarks.workload import MAIN, Size
from lockstep.features.rehearsal.process_usage import WORKERS, find_role

CONFIDENCE = 0.95
RATIOS_MAX = {200_000: RATIO_MAX, 100_000: 1.45}
"""By messages of a batch: driver and JVM cost each message of a small batch more."""
HALF_MAX = round(1 / 1.8, 3)
"""Two workers do at least 1.8 times the work of one: together they take so much of its time."""
_END_SECONDS_MAX = 60


@dataclass(frozen=True)
class Pairs:
    """Plan of the pairs.

    Attributes:
        size: The messages; what the slices leave is folded afterwards, so that all rows can be proven.
        batch_messages: Messages of a slice of either side.
        warm: Pairs whose figures are apart: compiled code, files and caches are not there yet.
        pairs: Pairs that count.
    """

    size: Size = MAIN
    batch_messages: int = 200_000
    warm: int = 3
    pairs: int = 20


@dataclass(frozen=True)
class Slice:
    """What one side did in one slice.

    Attributes:
        messages: Messages that it folded.
        cpu_seconds: Of all its processes.
        serial_seconds: Of these, of processes of which there is one, whatever the number of workers.
    """

    messages: int
    cpu_seconds: float
    serial_seconds: float = 0.0

    @property
    def per_million(self) -> float:
        """CPU seconds per million messages."""
        return self.cpu_seconds / self.messages * 1e6


class EndedEarlyError(Exception):
    """A side has ended before the slices did.

    Attributes:
        side: Its name.
    """

    def __init__(self, side: str) -> None:
        super().__init__(f"{side} ended before its slices did\n  next: read what it said above, or ask for fewer pairs")
        self.side = side


class Side:
    """One side: processes that fold one batch each for every slice."""

    def __init__(self, name: str, system: System, tasks: Sequence[Task]) -> None:
        self.name, self._tasks, self._system = name, tasks, system
        self._processes = [
            subprocess.Popen(
                system.command(task), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
            )
            for task in tasks
        ]

    def wait_done(self) -> int:
        """Wait until all processes have done their batch; returns the messages of all.

        Raises:
            EndedEarlyError: A process has ended.
        """
        return sum(self._wait_one(process) for process in self._processes)

    def run_slice(self, core: int) -> Slice:
        """One batch on one core."""
        before, single = self._pin(core), self._list_single()
        messages = self.run_batch()
        after = self.read_cpu()
        of_single = {pid: seconds for pid, seconds in after.items() if pid in single}
        return Slice(messages, compute_used(before, after), compute_used(before, of_single))

    def run_batch(self) -> int:
        """One batch; returns the messages of all processes.

        Raises:
            EndedEarlyError: A process has ended.
        """
        for process in self._processes:
            self._release_one(process)
        return self.wait_done()

    def read_cpu(self) -> dict[int, float]:
        """CPU seconds of every process, with those of its ended children."""
        found: dict[int, float] = {}
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                found[process.pid] = sum(process.cpu_times()[:4])
        return found

    def _list_single(self) -> set[int]:
        """The processes of which there is one: lockstep's driver and its JVM."""
        found = set[int]()
        for process in self.processes():
            with suppress(psutil.Error):
                if find_role(process) != WORKERS:
                    found.add(process.pid)
        return found

    def finish(self, cores: set[int]) -> Digest:
        """Fold what is left on all cores, wait for the end, and give the digest of all rows."""
        for core in cores:
            self._pin(core, cores)
        for process in self._processes:
            self._run_out(process)
        total = Digest(0, 0)
        for task in self._tasks:
            total += digest_of(task.output / (self._system.rows or "."))
        return total

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for each in self._processes:
            each.communicate()

    def _run_out(self, process: subprocess.Popen[str]) -> None:
        with suppress(EndedEarlyError, BrokenPipeError):
            while True:
                self._release_one(process)
                self._wait_one(process)
        if process.wait(_END_SECONDS_MAX):
            raise EndedEarlyError(self.name)

    def _release_one(self, process: subprocess.Popen[str]) -> None:
        if process.stdin is not None:
            process.stdin.write("\n")
            process.stdin.flush()

    def _wait_one(self, process: subprocess.Popen[str]) -> int:
        for line in process.stdout or ():
            if line.startswith(DONE):
                return int(line.removeprefix(DONE))
        raise EndedEarlyError(self.name)

    def _pin(self, core: int, cores: set[int] | None = None) -> dict[int, float]:
        """Bind every thread to a core (or to several); returns the CPU seconds until now."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                for thread in process.threads():
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(thread.id, cores or {core})
        return self.read_cpu()

    def processes(self) -> list[psutil.Process]:
        """All processes, and what they started."""
        found: list[psutil.Process] = []
        for each in self._processes:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(each.pid)
                found += [root, *root.children(recursive=True)]
        return found


def measure_pairs(plan: Pairs, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Run the pairs, prove the rows of both sides equal, and judge how far the figures can be trusted.

    1. Start each side and let it do its first batch, one side after the other. 2. The pairs, cores swapped each time.
    3. Fold what is left; the rows must be equal.

    Raises:
        WrongRowsError: The sides wrote different rows.
        EndedEarlyError: A side failed, or had too few messages.
    """
    conditions, before = Conditions.now(), spin()
    cores = sorted(os.sched_getaffinity(0))
    forget_positions(bootstrap_servers)
    with ExitStack() as stack:
        sides, first = [], []
        for name, system, tasks in plan_sides(plan, len(cores), bootstrap_servers, folder):  # 1
            sides.append(stack.enter_context(_start_side(name, system, tasks)))
            first.append(Slice(sides[-1].wait_done(), sum(sides[-1].read_cpu().values())))
        bare, ours = sides
        slices = []
        for number in range(plan.warm + plan.pairs):  # 2
            slices.append(run_pair(bare, ours, *pick_cores(cores, number)))
            console.print(f"pair {number + 1 - plan.warm}: {slices[-1][1].per_million / slices[-1][0].per_million:.3f}")
        right, found = (side.finish(set(cores)) for side in sides)  # 3
    if found != right:
        raise WrongRowsError(LOCKSTEP.name, right, found)
    after = spin()
    return make_record(plan, conditions, (before, after), first, slices)


def plan_sides(plan: Pairs, loops: int, servers: str, folder: Path) -> list[tuple[str, System, list[Task]]]:
    """Name, system and tasks of the bare side, with the topics split over so many loops, and of lockstep's."""
    topics = plan.size.topic_names()
    share = plan.batch_messages // loops
    split = [
        Task(servers, "|".join(map(re.escape, topics[n::loops])), folder / f"bare-{n}", share, turns=True)
        for n in range(loops)
    ]
    whole = Task(servers, plan.size.pattern, folder / "lockstep", plan.batch_messages, turns=True)
    return [("bare loops", REFERENCE, split), ("lockstep", LOCKSTEP, [whole])]


def pick_cores(cores: Sequence[int], number: int) -> tuple[int, int]:
    """The core of either side in a pair: two cores, swapped from pair to pair."""
    one, other = cores[0], cores[-1]
    return (one, other) if number % 2 == 0 else (other, one)


def run_pair(bare: Side, ours: Side, bare_core: int, our_core: int) -> tuple[Slice, Slice]:
    """A slice of both sides at the same moment."""
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(bare.run_slice, bare_core), pool.submit(ours.run_slice, our_core)
        return one.result(), other.result()


def compute_used(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds from one look to the next; a process that is new counts from its beginning."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def compute_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval of the median: the order statistics that contain it with at least this probability.

    It assumes nothing of the ratios but that they are independent. Fewer than 6 give their extremes.
    """
    ordered, count = sorted(ratios), len(ratios)
    outside, tail = 0, 0.0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > 1 - confidence:
            break
        outside = below
    return ordered[outside], ordered[count - 1 - outside]


def make_record(
    plan: Pairs,
    conditions: Conditions,
    calibration: tuple[float, float],
    first: Sequence[Slice],
    slices: Sequence[tuple[Slice, Slice]],
) -> Record:
    """The figures of the pairs, with what tells how far they can be trusted."""
    machine, (before, after) = conditions.hardware, calibration
    doubts = judge_calibration(before, after, machine.load_average, machine.cores)
    ratios = [ours.per_million / bare.per_million for bare, ours in slices]
    steady = ratios[plan.warm :]
    figures = [*_figures(plan, first[1], slices, ratios), Figure("calibration, after to before", after / before, "")]
    settings: dict[str, object] = {
        "messages": plan.size.messages,
        "batch_messages": plan.batch_messages,
        "doubts": doubts,
    }
    numbers = [float(number) for number in range(1, len(steady) + 1)]
    panel = Panel(
        kind="curve",
        title=f"lockstep to bare loops, pairs of {plan.batch_messages:,} messages",
        x_label="pair",
        y_label="ratio of CPU time",
        series=[Series("ratio", steady, x=numbers)],
    )
    bare, ours = ([pair[side].per_million for pair in slices] for side in (0, 1))
    details: dict[str, object] = {"bare": bare, "lockstep": ours, "ratios": ratios, "calibration": [before, after]}
    return mark_doubtful(conditions.record("pairs", settings, figures, [panel], details), doubts)


def _figures(plan: Pairs, first: Slice, slices: Sequence[tuple[Slice, Slice]], ratios: Sequence[float]) -> list[Figure]:
    warm, steady = ratios[: plan.warm], ratios[plan.warm :]
    middle, low, high = compute_spread(steady)
    sure_from, sure_to = compute_interval(steady)
    bare, ours = ([pair[side].per_million for pair in slices[plan.warm :]] for side in (0, 1))
    ours_serial = median(ours.serial_seconds / ours.cpu_seconds for _, ours in slices[plan.warm :])
    start_up = first.cpu_seconds - median(ours) * first.messages / 1e6
    unit = "CPU s per million messages"
    goal = RATIOS_MAX.get(plan.batch_messages)
    return [
        Figure(f"lockstep to bare loops, median of {len(steady)} pairs", middle, "", goal, len(steady)),
        Figure(f"the median lies from, with {CONFIDENCE:.0%}", sure_from, ""),
        Figure(f"the median lies to, with {CONFIDENCE:.0%}", sure_to, ""),
        Figure("quartiles of the pairs apart", high - low, ""),
        Figure("cores swapped or not: ratio of the medians", _swapped(steady), ""),
        Figure(f"the first {len(warm)} batches after the start: median", median(warm), ""),
        Figure("lockstep", median(ours), unit, CPU_MAX, len(steady)),
        Figure("bare loops", median(bare), unit),
        Figure("lockstep: start-up", start_up, "CPU s"),
        Figure("two workers: time to that of one, by what is serial", compute_time_ratio(ours_serial, 2), "", HALF_MAX),
        Figure("eight workers: likewise", compute_time_ratio(ours_serial, 8), ""),
    ]


def compute_time_ratio(serial: float, workers: int) -> float:
    """Time with so many workers to that with one, if a share of the work is serial and the rest is spread evenly."""
    return serial + (1 - serial) / workers


def _swapped(ratios: Sequence[float]) -> float:
    return median(ratios[::2]) / median(ratios[1::2] or ratios)


@contextmanager
def _start_side(name: str, system: System, tasks: Sequence[Task]) -> Iterator[Side]:
    side = Side(name, system, tasks)
    try:
        yield side
    finally:
        side.close()
