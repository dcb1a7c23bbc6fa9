"""The stage of a demo or a look around: a folder with a real Kafka and a Dagster instance, and their processes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.rehearsal.broker import Broker
from lockstep.rehearsal.process import adopt_orphans, end_descendants, start_tied

END_SECONDS = 30.0
"""How long a process may take to end after SIGTERM; a stream's own bound is 20 s."""


@dataclass(frozen=True)
class Stage:
    """Where a demo plays.

    Attributes:
        repository: The folder that holds `definitions.py`.
        folder: Everything the demo makes; delete it to begin anew.
        broker: The Kafka that runs there.
    """

    repository: Path
    folder: Path
    broker: Broker

    @property
    def tables(self) -> Path:
        """The table root."""
        return self.folder / "tables"

    def environment(self) -> dict[str, str]:
        """What a user would export to work on this stage by hand."""
        return {
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.broker.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.tables),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
        }

    def start(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """Start a command of the environment's `bin`, tied to this process; its output goes to a log."""
        whole = [tool(command[0]), *command[1:]]
        return start_tied(whole, folder=self.repository, log=self.log(name), environment=self.environment())

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def run(self, command: Sequence[str], name: str) -> None:
        """Run a command to its end.

        Raises:
            LockstepError: It failed; names the log and shows its last lines.
        """
        with ended_with(self.start(command, name)) as process:
            if process.wait() != 0:
                raise self.failed(name, f"`{' '.join(command[:3])}` ended with {process.returncode}")

    def failed(self, name: str, problem: str) -> LockstepError:
        """An error about a process, with the end of its log."""
        tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-15:])
        return LockstepError(f"{problem}:\n{tail}", next_step=f"read {self.log(name)}")


@contextmanager
def set_stage(repository: Path, folder: Path) -> Iterator[Stage]:
    """Start Kafka in the folder and prepare a Dagster instance; end everything on the way out."""
    for part in ("kafka", "tables", "dagster", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    shutil.copy(repository / "deploy" / "dagster.yaml", folder / "dagster" / "dagster.yaml")
    with Broker.start(folder / "kafka") as broker:
        broker.write_address(folder / "kafka.address")
        try:
            yield Stage(repository, folder, broker)
        finally:
            # The broker's process is stopped by its own block, gently; everything else ends here.
            end_descendants(END_SECONDS, but=broker.pid)


@contextmanager
def ended_with(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process when the block ends, however it ends."""
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; kill it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tool(name: str) -> str:
    """A command of this very environment."""
    return str(Path(sys.executable).with_name(name))


def exports(environment: Mapping[str, str]) -> str:
    """The environment as a line for a shell."""
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
