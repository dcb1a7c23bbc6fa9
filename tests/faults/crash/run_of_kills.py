"""A run over the recordings whose driver is killed repeatedly with -9, each time at a chosen phase."""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.features.localdev.processes import start_child
from tests.faults.crash.moments import Baseline, Found, Phase, Places, Proof, Watch

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from lockstep.table.layout import StreamFolders

REPOSITORY = Path(__file__).parents[3]
START_POLL_SECONDS, POLL_SECONDS = 0.05, 0.0005
"""The first applies while Spark starts, the second within a batch: some 10 ms separate its two commits."""
AIM_SECONDS_MAX = 300.0
END_SECONDS_MAX = 600.0
GONE_SECONDS_MAX = 30.0
FIRST_BATCHES = 3
"""A kill follows only after this number of commits of the whole run."""


@dataclass(frozen=True)
class Kill:
    """A kill -9 of the driver.

    Attributes:
        aim: The phase that was awaited.
        proof: The phase that was hit, by the files.
        recovery_seconds: From the start of the killed driver to its first commit, including Spark's start.
        gone_seconds: Time until all processes of the driver had ended.
    """

    aim: Phase
    proof: Proof
    recovery_seconds: float
    gone_seconds: float

    def __str__(self) -> str:
        return (
            f"kill after batch {self.proof.batch}: {self.proof.phase.value} [{self.proof.evidence}]; "
            f"aimed at {self.aim.name}; first commit {self.recovery_seconds:.1f} s after its start, "
            f"processes gone after {self.gone_seconds:.1f} s"
        )


@dataclass
class RunOfKills:
    """Starts drivers and kills them.

    Attributes:
        folders: The stream's folders.
        local: Root of the hot copies.
        bootstrap_servers: The broker.
        arguments: Arguments of the driver.
        log: Output of the drivers.
    """

    folders: StreamFolders
    local: Path
    bootstrap_servers: str
    arguments: tuple[str, ...]
    log: Path
    mark: str = field(default_factory=lambda: f"crash-{uuid.uuid4().hex}")

    @property
    def places(self) -> Places:
        """The watched folders."""
        return Places(self.folders.table, self.folders.ledger, self.local / "state")

    def kill_at(self, aim: Phase) -> Kill:
        """Start a driver, let it commit once, and kill it at the first moment that resembles the aim."""
        baseline = Baseline(self.places)
        began = time.monotonic()
        driver = self._start()
        try:
            self._until(driver, lambda: self.places.batch >= max(FIRST_BATCHES, baseline.batch + 1), START_POLL_SECONDS)
            recovered = time.monotonic() - began
            watch = Watch(baseline)
            self._until(driver, lambda: watch.sees(aim), POLL_SECONDS)
        finally:
            driver.kill()
            driver.wait()
        proof = Found(baseline).proof()
        died = time.monotonic()
        self.wait_until_gone()
        return Kill(aim, proof, recovered, time.monotonic() - died)

    def finish(self) -> None:
        """Start a driver and let it end."""
        driver = self._start()
        try:
            assert driver.wait(END_SECONDS_MAX) == 0, self.tail()
        finally:
            driver.kill()
            driver.wait()
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        """Wait until all JVMs and Python workers of the drivers have ended."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while left := marked(self.mark):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    def tail(self) -> str:
        """Return the last lines of the drivers' log."""
        return "\n".join(self.log.read_text().splitlines()[-25:])

    def _start(self) -> subprocess.Popen[bytes]:
        settings = self.log.with_suffix(".toml")
        settings.touch()  # empty: the settings of the user who runs the tests do not apply
        environment = {
            "LOCKSTEP_SETTINGS": str(settings),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.folders.root),
            "LOCKSTEP_LOCAL_ROOT": str(self.local),
            "LOCKSTEP_SPARK__MASTER": "local[2,3]",
            "TEST_MARK": self.mark,
        }
        command = [sys.executable, "-m", "tests.faults.crash.driver", *self.arguments]
        return start_child(command, folder=REPOSITORY, log=self.log, environment=environment)

    def _until(self, driver: subprocess.Popen[bytes], condition: Callable[[], bool], look_seconds: float) -> None:
        deadline = time.monotonic() + AIM_SECONDS_MAX
        while not condition():
            assert driver.poll() is None, f"the driver ended by itself:\n{self.tail()}"
            assert time.monotonic() < deadline, f"the moment did not come:\n{self.tail()}"
            time.sleep(look_seconds)


def marked(mark: str) -> list[str]:
    """List the living processes that inherited the mark, by name and id."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(f"{(folder / 'comm').read_text().strip()} {folder.name}")
            except OSError:
                continue  # it has ended, or belongs to another user
    return found
