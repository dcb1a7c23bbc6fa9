"""A run keeps the code of its start, also in workers that start after an edit; the next run has the new code."""

from __future__ import annotations

import signal
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from lockstep.features.localdev.processes import start_child
from lockstep.operations.inspect.history import read_history
from lockstep.operations.project import FILES
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from tests.support.descendants import end_with_descendants, list_descendants
from tests.support.feed import Feed
from tests.support.installation import wait_until
from tests.support.plain_reader import named_files, read_table, rows_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from lockstep.features.localdev.broker import Broker

REPOSITORY = Path(__file__).parents[3]
WORKER_DAEMON = "lockstep.spark.worker_daemon"
STOP_SECONDS_MAX = 60


@dataclass
class Project:
    """A project with the example stream of `lockstep init`, over one topic.

    Attributes:
        folder: The folder.
        feed: The producer.
        sent: Number of messages.
    """

    folder: Path
    feed: Feed
    sent: int = 0

    @property
    def tables(self) -> StreamFolders:
        return StreamFolders("readings", self.folder / "tables")

    def write(self, factor: int) -> None:
        """Write the stream; the values of its rows are those of the messages, times a factor."""
        text = (FILES / "readings.py.txt").read_text()
        text = text.replace("ReadingRow(message.value,", f"ReadingRow(message.value * {factor},")
        text = text.replace('r"readings\\..+"', f'r"{self.feed.pattern}"')
        text = text.replace("import EnvelopeFields", "import EnvelopeFields, Every")
        text = text.replace("    transform=Meters(),", "    transform=Meters(),\n    trigger=Every(seconds=0.3),")
        (self.folder / "assets").mkdir(exist_ok=True)
        (self.folder / "assets" / "readings.py").write_text(text)

    def send(self, count: int) -> None:
        """Send the next readings, and wait for their rows."""
        numbers = range(self.sent + 1, self.sent + count + 1)
        values = [msgspec.json.encode({"number": number, "value": 1.0}) for number in numbers]
        self.feed.send(f"{self.feed.family}.house", values)
        self.sent += count
        wait_until(lambda: len(self.read_values()) == self.sent, "all rows")

    def read_values(self) -> list[object]:
        """The values of the rows, in the order of the messages."""
        if not delta_log.has_log(self.tables.table) or not named_files(self.tables.table):
            return []
        table = read_table(self.tables.table)
        return [row[0] for row in rows_of(table, f"{self.feed.family}.house", ("value",))]

    @contextmanager
    def run(self) -> Iterator[subprocess.Popen[bytes]]:
        """`lockstep run` in another process."""
        process = start_child(
            [sys.executable, "-m", "lockstep.cli", "run", "readings"],
            folder=self.folder,
            log=self.folder / f"run-{uuid.uuid4().hex[:6]}.log",
            environment={
                "PYTHONPATH": str(REPOSITORY / "platform"),
                "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.feed.bootstrap_servers,
                "LOCKSTEP_TABLE_ROOT": str(self.folder / "tables"),
                "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
                "LOCKSTEP_SPARK__MASTER": "local[1,3]",
                "LOCKSTEP_SPARK__DRIVER_MEMORY": "512m",
            },
        )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_SECONDS_MAX) == 0
        finally:
            end_with_descendants([process])


def kill_workers(run: subprocess.Popen[bytes]) -> None:
    """Kill the Python workers of a run with the daemon that they are forked from: Spark starts another."""
    below = map(psutil.Process, list_descendants(run.pid))
    daemons = [process for process in below if WORKER_DAEMON in process.cmdline()]
    assert daemons
    for process in daemons:
        process.kill()
    psutil.wait_procs(daemons)


@pytest.mark.slow
@pytest.mark.broker
def test_a_worker_that_starts_after_an_edit_has_the_code_of_its_run(broker: Broker, tmp_path: Path) -> None:
    project = Project(tmp_path, Feed(broker.bootstrap_servers, f"pinned_{uuid.uuid4().hex[:8]}"))
    project.feed.create("house")
    project.write(1)
    with project.run() as run:
        project.send(5)
        project.write(2)
        kill_workers(run)
        project.send(5)
        assert project.read_values() == [1.0] * 10
    with project.run():
        project.send(5)
    assert project.read_values() == [1.0] * 10 + [2.0] * 5
    causes = [event.detail for event in read_history(project.tables, last=50).events if "(code " in event.detail]
    codes = [cause.rpartition("(code ")[2] for cause in causes]
    assert len(set(codes)) == 2, causes
    head = OutputLog(project.tables.table).base().head
    assert head.code_version is not None
    assert codes[-1] == f"{head.code_version.digest[:12]})"
