"""The faults of a game day, chosen by a seed, and their timeline. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from lockstep.html_page import Bar, Fact, Line, Page, Section, TableOf, draw_bars, draw_lines

CALM_SECONDS = (2.0, 8.0)
"""Between the recovery from a fault and the next fault."""
OUTAGE_SECONDS = (2.0, 15.0)
"""Duration of a stop or a pause: below and above the time after which a writer counts as dead."""
RECOVERY_SECONDS_MAX = 240.0
"""A run is started again within some 30 s on an idle machine, and ten times as long on a busy one."""


class FaultKind(Enum):
    """Faults of the fault matrix that are safe on a machine with other work."""

    RUN_KILLED = "kill -9 of the run"
    JVM_KILLED = "kill -9 of the run's JVM"
    WORKER_KILLED = "kill -9 of a Python worker of the run"
    RUN_PAUSED = "the run is paused (SIGSTOP)"
    CODE_SERVER_KILLED = "kill -9 of Dagster's code server"
    DAEMON_KILLED = "kill -9 of Dagster's daemon"
    BROKER_STOPPED = "the broker is stopped"
    BROKER_KILLED = "kill -9 of the broker"
    BROKER_PAUSED = "the broker is paused (SIGSTOP)"
    TOPIC_ADDED = "a new topic"
    POISON_MESSAGE = "a message that cannot be decoded"
    MAINTENANCE = "hour closed, compaction and housekeeping"


OUTAGES = frozenset({FaultKind.RUN_PAUSED, FaultKind.BROKER_STOPPED, FaultKind.BROKER_KILLED, FaultKind.BROKER_PAUSED})
"""Faults that last until they are ended."""


class PlannedFault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        number: From 1.
        kind: What happens.
        stream: The stream concerned; for the others its index is drawn, too, so that a seed has one plan.
        outage_seconds: Duration of an outage; 0 for other kinds.
        calm_seconds: Pause before it.
    """

    number: int
    kind: FaultKind
    stream: str
    outage_seconds: float
    calm_seconds: float


def plan_faults(seed: int, streams: Sequence[str]) -> Iterator[PlannedFault]:
    """Faults without end: every kind once in random order, then every kind again in another order.

    Args:
        seed: The same seed has the same faults.
        streams: Names of the streams.
    """
    chance = random.Random(seed)  # noqa: S311  # no secret
    number = 0
    while True:
        kinds = list(FaultKind)
        chance.shuffle(kinds)
        for kind in kinds:
            number += 1
            outage = chance.uniform(*OUTAGE_SECONDS)
            yield PlannedFault(
                number=number,
                kind=kind,
                stream=chance.choice(sorted(streams)),
                outage_seconds=round(outage, 1) if kind in OUTAGES else 0.0,
                calm_seconds=round(chance.uniform(*CALM_SECONDS), 1),
            )


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a fault.

    Attributes:
        fault: The fault.
        at_seconds: Its start, since the start of the game day.
        lasted_seconds: Until it was ended, or its commands had.
        what: What exactly was done.
        recovered_seconds: For each stream, from its end to the commit of a message that was sent after it.
        problem: Why it is not recovered; empty otherwise.
    """

    fault: PlannedFault
    at_seconds: float
    lasted_seconds: float
    what: str
    recovered_seconds: Mapping[str, float]
    problem: str = ""

    @property
    def slowest_seconds(self) -> float | None:
        """The stream that took longest; None if a stream did not recover."""
        if self.problem:
            return None
        return max(self.recovered_seconds.values(), default=0.0)


class StreamProof(msgspec.Struct, frozen=True):
    """Result of `lockstep verify` of one stream at the end.

    Attributes:
        stream: Name of the stream.
        status: proven, violated or not proven.
        messages: Messages read again.
        batch: The last batch.
        detail: Violations and notes.
    """

    stream: str
    status: str
    messages: int
    batch: int
    detail: str = ""


class GameDayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a game day.

    Attributes:
        seed: Reproduces the faults.
        minutes: Duration as asked for.
        faults: The timeline.
        proofs: One for each stream.
        committed: (seconds since the start, messages committed) of each stream.
        failure: The error that ended it early; empty otherwise.
        hosted: Whether one host ran all streams.
    """

    seed: int
    minutes: float
    faults: Sequence[FaultResult]
    proofs: Sequence[StreamProof]
    committed: Mapping[str, Sequence[tuple[float, int]]]
    failure: str = ""
    hosted: bool = False

    @property
    def command(self) -> str:
        """The command of the same faults."""
        command = f"make gameday MINUTES={self.minutes:g} SEED={self.seed}"
        return f"{command} HOST=1" if self.hosted else command

    @property
    def is_passed(self) -> bool:
        """Whether every fault was recovered from, and every stream is proven."""
        recovered = all(not result.problem for result in self.faults)
        proven = bool(self.proofs) and all(proof.status == "proven" for proof in self.proofs)
        return recovered and proven and not self.failure

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        lost = [result for result in self.faults if result.problem]
        proven = sum(proof.status == "proven" for proof in self.proofs)
        recovered = f"{len(self.faults) - len(lost)} of {len(self.faults)} faults recovered from"
        proofs = f"{proven} of {len(self.proofs)} streams proven"
        outcome = "passed" if self.is_passed else "FAILED"
        return f"{outcome}: {recovered}, {proofs}"


SPACE = "\N{NO-BREAK SPACE}"
TIMELINE_COLUMNS = ("", "at", "fault", "done", "lasted", "next commit", "problem")


def list_timeline(result: GameDayResult) -> Iterator[tuple[str, ...]]:
    """One row a fault, as `TIMELINE_COLUMNS`."""
    for fault_result in result.faults:
        recovered = sorted(fault_result.recovered_seconds.items())
        yield (
            str(fault_result.fault.number),
            f"{fault_result.at_seconds:.0f}{SPACE}s",
            fault_result.fault.kind.value,
            fault_result.what,
            f"{fault_result.lasted_seconds:.1f}{SPACE}s",
            ", ".join(f"{stream}{SPACE}{seconds:.1f}{SPACE}s" for stream, seconds in recovered),
            fault_result.problem,
        )


def make_game_page(result: GameDayResult) -> Page:
    """The page of a game day."""
    marks: dict[int, str] = {}
    bars: list[Bar] = []
    for number, fault_result in enumerate(result.faults):
        marks[number] = "bad" if fault_result.problem else "good"
        slowest = fault_result.slowest_seconds
        # Without a recovery there is no bar; the timeline has the problem.
        if slowest is not None:
            bars.append(
                Bar(f"{fault_result.fault.number} {fault_result.fault.kind.name.lower()}", slowest, f"{slowest:.1f} s")
            )
    timeline = TableOf(TIMELINE_COLUMNS, tuple(list_timeline(result)), marks)
    lines = [_make_line(stream, points) for stream, points in result.committed.items()]
    return Page(
        title="Game day",
        verdict=result.verdict,
        is_good=result.is_passed,
        facts=(
            Fact("seed", f"{result.seed}: {result.command}"),
            Fact("minutes", f"{result.minutes:g}"),
        ),
        sections=(
            Section("Timeline", tables=(timeline,), note=result.failure),
            Section("Until the next commit of the slowest stream", charts=(draw_bars(bars, "seconds"),)),
            Section("Messages committed", charts=(draw_lines(lines, x_label="seconds", y_label="messages"),)),
            Section("lockstep verify", tables=(_make_proofs(result.proofs),)),
        ),
    )


def _make_line(stream: str, points: Sequence[tuple[float, int]]) -> Line:
    return Line(stream, tuple((seconds, float(count)) for seconds, count in points))


def _make_proofs(proofs: Sequence[StreamProof]) -> TableOf:
    rows: list[tuple[str, ...]] = []
    marks: dict[int, str] = {}
    for number, proof in enumerate(proofs):
        rows.append((proof.stream, proof.status, f"{proof.messages:,}", str(proof.batch), proof.detail or "-"))
        marks[number] = "good" if proof.status == "proven" else "bad"
    return TableOf(("stream", "status", "messages", "last batch", "detail"), rows, marks)
