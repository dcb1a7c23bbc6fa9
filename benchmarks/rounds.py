"""Measures systems in turns, so that other load of the machine affects all of them alike."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.feed import forget_positions
from benchmarks.measure import Usage, run_measured
from benchmarks.peers.topic_rows import digest_of_topic
from benchmarks.report import Report, Result, commit, hardware, today, versions
from benchmarks.systems import System, Task, environment
from benchmarks.verify import Digest, digest_of, expected
from benchmarks.workload import Size


@dataclass(frozen=True)
class Plan:
    """Plan of a measurement.

    Attributes:
        size: The messages.
        smoke: The small size whose runs measure start-up.
        systems: The systems, in the order of each round.
        repeat: Rounds.
        batch_messages: Messages of a batch.
    """

    size: Size
    smoke: Size
    systems: tuple[System, ...]
    repeat: int
    batch_messages: int


@dataclass(frozen=True)
class Run:
    """One run of one system: its rows and its usage."""

    digest: Digest
    usage: Usage


class WrongRowsError(Exception):
    """A system wrote wrong rows; its time means nothing.

    Attributes:
        system: Its name.
        expected: The right rows.
        found: Its rows.
    """

    def __init__(self, system: str, expected: Digest, found: Digest) -> None:
        super().__init__(
            f"{system} wrote {found}, right is {expected}\n"
            "  next: run `python -m benchmarks main --size smoke` and compare with benchmarks.verify's plain fold"
        )
        self.system = system
        self.expected = expected
        self.found = found


def measure_all(plan: Plan, bootstrap_servers: str, folder: Path, console: Console) -> Report:
    """Run all systems and prove their rows.

    1. Warm: each system once over the smoke size; its rows must be those of the plain fold.
    2. Start-up: the smoke size again. 3. The whole size; the rows must be the first system's.

    Raises:
        WrongRowsError: A system wrote other rows.
        CommandFailedError: A system failed.
    """
    bench = Bench(plan.systems, plan.batch_messages, bootstrap_servers, folder, console)
    truth = expected(plan.smoke)
    prove(bench.rounds(plan.smoke, 1), truth)  # 1
    start_up = bench.rounds(plan.smoke, plan.repeat)  # 2
    prove(start_up, truth)
    whole = start_up if plan.size == plan.smoke else bench.rounds(plan.size, plan.repeat)  # 3
    digest = next(iter(whole.values()))[0].digest
    prove(whole, digest)
    results = [result_of(name, digest, start_up[name], runs) for name, runs in whole.items()]
    return Report(
        date=today(),
        size=plan.size,
        smoke=plan.smoke,
        batch_messages=plan.batch_messages,
        versions=versions(),
        hardware=bench.hardware,
        results=results,
        commit=commit(),
    )


class Bench:
    """Runs systems against one broker, each in an output folder of its own that is removed afterwards."""

    def __init__(
        self, systems: Sequence[System], batch_messages: int, bootstrap_servers: str, folder: Path, console: Console
    ) -> None:
        self.hardware = hardware()
        self._systems, self._batch_messages = systems, batch_messages
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder
        self._console = console

    def rounds(self, size: Size, repeat: int) -> dict[str, list[Run]]:
        """Run every system over a size, in turns."""
        runs: dict[str, list[Run]] = defaultdict(list)
        for number in range(repeat):
            for system in self._systems:
                with self._console.status(f"{system.name} over {size.name}, round {number + 1} of {repeat} ..."):
                    runs[system.name].append(self._run(system, size))
                used = runs[system.name][-1].usage
                self._console.print(
                    f"{size.name} {system.name}: {used.cpu_seconds:.2f} CPU s in {used.wall_seconds:.2f} s"
                )
        return runs

    def _run(self, system: System, size: Size) -> Run:
        output = self._folder / system.name
        task = Task(self._bootstrap_servers, size.pattern, output, self._batch_messages)
        forget_positions(self._bootstrap_servers)
        usage = run_measured(system.command(task), environment())
        if system.rows is None:
            digest = digest_of_topic(self._bootstrap_servers, output)
        else:
            digest = digest_of(output / system.rows)
        shutil.rmtree(output)
        return Run(digest, usage)


def prove(runs: Mapping[str, Sequence[Run]], right: Digest) -> None:
    """Check the rows of all runs.

    Raises:
        WrongRowsError: A run wrote other rows.
    """
    for system, each in runs.items():
        for run in each:
            if run.digest != right:
                raise WrongRowsError(system, right, run.digest)


def result_of(name: str, digest: Digest, start_up: Sequence[Run], runs: Sequence[Run]) -> Result:
    """The runs of one system over one size, as stored."""
    return Result(
        system=name,
        rows=digest.rows,
        hash_sum=f"{digest.hash_sum:016x}",
        start_up=[run.usage for run in start_up],
        runs=[run.usage for run in runs],
    )
