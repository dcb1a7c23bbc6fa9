"""Game day: a separate live platform, random faults, and a proof of every stream at the end.

    python -m lockstep.features.rehearsal.game_day REPOSITORY --minutes 5 --seed 7

Its files are in REPOSITORY/.gameday/platform; its processes carry that folder in their environment and listen on
loopback. Both are gone at its end, also after Ctrl-C; the next game day ends the rest of a killed one. The page stays,
and after a failure the files, with the logs that explain it, until the next game day.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from lockstep.declare.discovery import find_streams
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.localdev.feed import list_recordings
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.localdev.platform import HOSTED_STREAMS, INTERRUPTED, SMALL_STREAMS, start_live
from lockstep.features.localdev.processes import hold_folder_lock, ignore_interrupts, interrupt_by_signals, stop_all
from lockstep.features.rehearsal.fault_injection import FaultInjector
from lockstep.features.rehearsal.fault_plan import (
    RECOVERY_SECONDS_MAX,
    FaultResult,
    GameDayResult,
    PlannedFault,
    StreamProof,
    make_game_page,
    plan_faults,
)
from lockstep.html_page import check_page_path, render_page
from lockstep.operations.inspect.status import read_status
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.head import Desired
from lockstep.table.ledger import LedgerRow
from lockstep.time_limit import SLOW, describe_silence
from lockstep.verify.report import VerifyReport

FOLDER = ".gameday"
PLATFORM = "platform"
REPORT = "report.html"
SPEED = 60.0
"""Messages a second of the feed, of all topics together."""
DRAIN_SECONDS_MAX = 180.0
POLL_SECONDS = 1.0
SHOWN_MAX = 5
"""Violations of a stream on the page."""
SAY = Console(highlight=False, soft_wrap=True)


@dataclass
class GameDay:
    """One game day on a running platform.

    Attributes:
        injector: Injects the faults.
        seed: Their seed.
        minutes: No fault starts after that.
        hosted: Whether one host runs all streams.
    """

    injector: FaultInjector
    seed: int
    minutes: float
    hosted: bool = False
    began: float = field(default_factory=time.monotonic)
    committed: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def play(self) -> GameDayResult:
        """Inject faults until the time is over or one is not recovered from; then prove every stream.

        1. Wait until every stream commits.
        2. Inject a fault, and wait until every stream commits messages that were sent after it.
        3. Stop the feed, wait until everything is committed, and run `lockstep verify` for each stream.
        """
        faults: list[FaultResult] = []
        failure = ""
        try:
            self._await_commits(time.time())  # 1
            for fault in plan_faults(self.seed, tuple(self.injector.streams)):
                if self._passed() + fault.calm_seconds > 60 * self.minutes:
                    break
                time.sleep(fault.calm_seconds)
                faults.append(self._survive(fault))  # 2
                SAY.print(f"  {faults[-1].what}; {_format_recovery(faults[-1])}")
                if faults[-1].problem:
                    break
            self._drain()
        except LockstepError as error:
            failure = error.problem
        return GameDayResult(
            seed=self.seed,
            minutes=self.minutes,
            faults=faults,
            proofs=[self._prove(stream) for stream in self.injector.streams],  # 3
            committed=self.committed,
            failure=failure,
            hosted=self.hosted,
        )

    def _passed(self) -> float:
        return time.monotonic() - self.began

    def _survive(self, fault: PlannedFault) -> FaultResult:
        started_at = self._passed()
        SAY.print(f"[bold]{started_at:5.0f} s[/bold] {fault.kind.value} ({fault.stream})")
        try:
            what = self.injector.inject(fault)
            problem = ""
        except LockstepError as error:
            what = "failed"
            problem = error.problem
        lasted = self._passed() - started_at
        recovered = dict[str, float]()
        if not problem:
            try:
                recovered = self._await_commits(time.time())
            except LockstepError as error:
                problem = error.problem
        return FaultResult(
            fault=fault,
            at_seconds=started_at,
            lasted_seconds=lasted,
            what=what,
            recovered_seconds=recovered,
            problem=problem,
        )

    def _await_commits(self, sent_after: float) -> dict[str, float]:
        """Wait until each stream has committed a message sent after a time; the seconds that each took.

        Raises:
            LockstepError: One has halted, or did not in time.
        """
        began = time.monotonic()
        commits = dict[str, float]()
        while len(commits) < len(self.injector.streams):
            for name, stream in self.injector.streams.items():
                handle = StreamHandle(stream, self.injector.settings)
                if handle.head is not None and handle.head.desired is Desired.HALTED:
                    findings = "; ".join(map(str, handle.head.findings))
                    raise LockstepError(f"{name} halted: {findings}", next_step=f"lockstep status {name}")
                if self._newest(name, handle) > sent_after:
                    commits.setdefault(name, time.monotonic() - began)
            if time.monotonic() - began > RECOVERY_SECONDS_MAX:
                late = sorted(self.injector.streams.keys() - commits)
                silence = describe_silence(", ".join(late), RECOVERY_SECONDS_MAX, verb="commit")
                raise LockstepError(silence, next_step=f"{SLOW}; else read {self.injector.platform.folder / 'logs'}")
            time.sleep(POLL_SECONDS)
        return commits

    def _newest(self, name: str, handle: StreamHandle) -> float:
        """Time of the newest committed message; and the number of those committed, for the chart."""
        rows: list[LedgerRow] = list(handle.positions.values())
        self.committed.setdefault(name, []).append((self._passed(), sum(row.until for row in rows)))
        return max((row.newest_timestamp.timestamp() for row in rows if row.newest_timestamp), default=0.0)

    def _drain(self) -> None:
        """Stop the feed, and wait until everything is committed.

        Raises:
            LockstepError: It is not.
        """
        self.injector.platform.end("feed")
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        for name, stream in self.injector.streams.items():
            while read_status(StreamHandle(stream, self.injector.settings)).lag_messages != 0:
                if time.monotonic() > deadline:
                    silence = describe_silence(name, DRAIN_SECONDS_MAX, verb="commit its backlog")
                    raise LockstepError(silence, next_step=f"{SLOW}: lockstep status {name} shows its lag")
                time.sleep(POLL_SECONDS)

    def _prove(self, stream: str) -> StreamProof:
        SAY.print(f"  lockstep verify {stream}")
        done = self.injector.run_command("verify", stream, "--json")
        try:
            report = msgspec.json.decode(done.stdout, type=VerifyReport)
        except msgspec.DecodeError:
            return StreamProof(stream, "not proven", 0, 0, done.stderr.strip())
        violations = (
            f"{each.kind.value} at {each.topic}/{each.partition}@{each.offset}"
            for each in report.violations[:SHOWN_MAX]
        )
        detail = "; ".join([*violations, *report.notes])
        return StreamProof(stream, report.status.value, report.messages, report.batch, detail)


def _format_recovery(result: FaultResult) -> str:
    if result.problem:
        return f"[red]not recovered: {result.problem}[/red]"
    return f"next commit of the slowest stream after {result.slowest_seconds or 0.0:.1f} s"


def run_game_day(repository: Path, minutes: float, seed: int, *, hosted: bool = False) -> GameDayResult:
    """Start a platform, play, and end everything.

    Args:
        repository: The folder with `definitions.py` and `tests/recordings`.
        minutes: Duration of the faults.
        seed: Seed of the faults.
        hosted: Whether one host runs all streams; otherwise each has a separate run.

    Raises:
        LockstepError: The platform did not start.
    """
    folder = repository / FOLDER / PLATFORM
    platform = LocalPlatform(repository, folder, settings=HOSTED_STREAMS if hosted else SMALL_STREAMS)
    with hold_folder_lock(repository / FOLDER), interrupt_by_signals():
        _remove(folder)
        has_failed = True  # for any end
        try:
            for step in start_live(platform, SPEED):
                SAY.print(f"[bold]>[/bold] {step}")
            result = GameDay(_make_injector(platform, seed), seed, minutes, hosted).play()
            has_failed = not result.is_passed
        except KeyboardInterrupt:
            has_failed = False
            raise
        finally:
            with ignore_interrupts():
                SAY.print(f"ending the platform{f'; its files stay in {folder}' if has_failed else ''}")
                stop_all(folder, (), ())
                if not has_failed:
                    shutil.rmtree(folder, ignore_errors=True)
        return result


def _make_injector(platform: LocalPlatform, seed: int) -> FaultInjector:
    streams: dict[str, AnyStream] = dict(find_streams(platform.repository))
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=platform.servers().kafka),
        table_root=platform.tables,
        local_root=platform.folder / "local",
    )
    recordings = list_recordings(platform.repository / "tests" / "recordings")
    return FaultInjector(platform, settings, streams, recordings, seed)


def _remove(folder: Path) -> None:
    """End the processes of a game day, and delete its files."""
    stop_all(folder, (), ())
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="gameday", description="Random faults on a live platform, and a proof.")
    parser.add_argument("repository", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0, help="time for faults (default 5)")
    parser.add_argument("--seed", type=int, default=None, help="reproduces the faults; drawn without one")
    parser.add_argument("--host", action="store_true", help="one host runs all streams, not a run for each stream")
    parser.add_argument("--report", type=Path, default=None, help=f"the page (default REPOSITORY/{FOLDER}/{REPORT})")
    wanted = parser.parse_args()
    repository = wanted.repository.absolute()
    seed = random.SystemRandom().randrange(10_000) if wanted.seed is None else wanted.seed
    path = wanted.report or repository / FOLDER / REPORT
    if wanted.report is not None:
        try:
            check_page_path(path)
        except OSError as error:
            parser.error(f"argument --report: {path.absolute()} cannot be written: {error.strerror}")
    SAY.print(f"game day of {wanted.minutes:g} minutes, seed {seed}")
    try:
        result = run_game_day(repository, wanted.minutes, seed, hosted=wanted.host)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    path.write_text(render_page(make_game_page(result)), encoding="utf-8")
    SAY.print(f"{result.verdict}\nreport: {path}; again: {result.command}")
    sys.exit(0 if result.is_passed else 1)


if __name__ == "__main__":
    main()
