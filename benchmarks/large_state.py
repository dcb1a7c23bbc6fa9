"""Much state: memory while it is made, its size on disk, restarts with and without the local copy."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from benchmarks.pairs import Side
from benchmarks.record import Conditions, Figure, Panel, Record, Series
from benchmarks.systems import LOCKSTEP, STREAM, Task
from benchmarks.workload import Size
from lockstep.features.rehearsal.process_usage import DRIVER, JVM, WORKERS, find_role

SESSION_BYTES = 12_500
"""A session of 200 rows in the local copy of the state."""
SAMPLE_SECONDS = 1.0
RESTART_MAX_SECONDS = 15.0
KINDS = (DRIVER, JVM, WORKERS)
RESTARTS = KEPT, LOST = "local copy kept", "local copy lost"


@dataclass(frozen=True)
class LargeState:
    """Settings of the measurement.

    Attributes:
        gigabytes: State, as the local copy holds it.
        batch_messages: Messages of a batch; a snapshot has 26 kB.
        batches: Of updates, after the snapshots and after each restart.
    """

    gigabytes: float = 10.0
    batch_messages: int = 20_000
    batches: int = 2

    @property
    def size(self) -> Size:
        """The messages: a snapshot a session, then updates for all phases."""
        sessions = int(self.gigabytes * 1e9 / SESSION_BYTES) // 8 * 8
        return Size("state", sessions + 10 * self.batches * self.batch_messages, sessions=sessions)


class Phase(msgspec.Struct, frozen=True):
    """A run from its start to its kill.

    Attributes:
        first_seconds: From the start of the process to the end of the first batch.
        messages: Messages of its batches.
        wall_seconds: Of all of it.
        cpu_seconds: Of all processes.
        memory_bytes_max: Most memory by kind of process that no file backs: pages of the local copy are the system's.
        disk_bytes: In the end, by folder.
    """

    first_seconds: float
    messages: int
    wall_seconds: float
    cpu_seconds: float
    memory_bytes_max: dict[str, int]
    disk_bytes: dict[str, int]


def measure_large_state(asked: LargeState, *, bootstrap_servers: str, folder: Path, console: Console) -> Record:
    """Make the state, then restart twice, without its local copy the second time.

    Raises:
        EndedEarlyError: A run failed.
    """
    conditions, updates = Conditions.now(), asked.batches * asked.batch_messages
    task = Task(bootstrap_servers, asked.size.pattern, folder / "state", asked.batch_messages, turns=True)
    phases = dict[str, Phase]()
    for name, messages in (("made", asked.size.sessions + updates), (KEPT, updates), (LOST, updates)):
        if name == LOST:
            shutil.rmtree(task.output / "local")
        phases[name] = run_phase(task, messages)
        console.print(name, phases[name])
    settings = msgspec.to_builtins(asked) | {"state_rows": asked.size.sessions * asked.size.rows}
    details = {"phases": msgspec.to_builtins(phases)}
    return conditions.record("state", settings, figures(phases), [panel(phases)], details)


def run_phase(task: Task, messages: int) -> Phase:
    """Run batches of so many messages, and kill all processes."""
    began, side = time.monotonic(), Side("lockstep", LOCKSTEP, [task])
    try:
        with watched_memory(side) as memory:
            done = side.wait_done()
            first_seconds = time.monotonic() - began
            while done < messages:
                done += side.run_batch()
            wall_seconds, cpu_seconds = time.monotonic() - began, sum(side.read_cpu().values())
    finally:
        side.close()
    folders = {"local copy": task.output / "local", "state": task.output / STREAM / "state"}
    disk = {name: measure_folder(folder) for name, folder in folders.items()}
    return Phase(first_seconds, done, wall_seconds, cpu_seconds, dict(memory), disk)


@contextmanager
def watched_memory(side: Side) -> Iterator[Counter[str]]:
    """The most memory by kind of process until the end of the block, looked at every second."""
    most, ended = Counter[str](), threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            for kind, found in sum_memory(side).items():
                most[kind] = max(most[kind], found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def sum_memory(side: Side) -> Counter[str]:
    """Bytes that no file backs, by kind of process; shared ones count once."""
    found = Counter[str]()
    for process in side.processes():
        with suppress(psutil.Error, OSError):
            kind = find_role(process)
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    found[kind] += 1024 * int(line.split()[1])
    return found


def measure_folder(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def figures(phases: dict[str, Phase]) -> list[Figure]:
    """Disk, memory and time."""
    made = phases["made"]
    return [
        Figure("state, local copy", made.disk_bytes["local copy"] / 1e9, "GB"),
        Figure("state, durable files", made.disk_bytes["state"] / 1e9, "GB"),
        *(
            Figure(f"memory of {kind}, most, while the state is made", made.memory_bytes_max[kind] / 1e9, "GB")
            for kind in KINDS
        ),
        Figure("to make it", made.cpu_seconds, "CPU s"),
        Figure("to make it, wall time", made.wall_seconds, "s"),
        *(
            Figure(f"restart to first batch, {name}", phases[name].first_seconds, "s", RESTART_MAX_SECONDS)
            for name in RESTARTS
        ),
        *(
            Figure(f"memory of {WORKERS}, most, {name}", phases[name].memory_bytes_max[WORKERS] / 1e9, "GB")
            for name in RESTARTS
        ),
    ]


def panel(phases: dict[str, Phase]) -> Panel:
    """Memory by phase and kind of process."""
    labels = list(phases)
    series = [
        Series(kind, [each.memory_bytes_max[kind] / 1e9 for each in phases.values()], labels=labels) for kind in KINDS
    ]
    return Panel(kind="bars", title="Most memory with much state", x_label="run", y_label="GB", series=series)
