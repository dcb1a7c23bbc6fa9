"""A project as `lockstep init` writes it, with its example stream over one topic of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lockstep.features.localdev.processes import start_child
from lockstep.operations.project import FILES
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders
from tests.support.descendants import end_with_descendants
from tests.support.feed import Feed
from tests.support.installation import wait_until
from tests.support.plain_reader import named_files, read_table, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
STOP_SECONDS_MAX = 60


@dataclass
class ReadingsProject:
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
        """Return the values of the rows, in the order of the messages."""
        if not delta_log.has_log(self.tables.table) or not named_files(self.tables.table):
            return []
        table = read_table(self.tables.table)
        return [row[0] for row in rows_of(table, f"{self.feed.family}.house", ("value",))]

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes."""
        return {
            "PYTHONPATH": str(REPOSITORY / "platform"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.feed.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.folder / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            "LOCKSTEP_SPARK__MASTER": "local[1,3]",
            "LOCKSTEP_SPARK__DRIVER_MEMORY": "512m",
            "DAGSTER_HOME": str(self.folder / "dagster_home"),
        }

    def call(self, *arguments: str) -> str:
        """Run lockstep to its end, and return its output."""
        command = [sys.executable, "-m", "lockstep.cli", *arguments]
        environment = {**os.environ, **self.environment()}
        said = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout + said.stderr
        return said.stdout

    @contextmanager
    def run(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a Python module for the block; it must exit with 0 after SIGINT."""
        log = self.folder / f"run-{uuid.uuid4().hex[:6]}.log"
        environment = self.environment()
        process = start_child([sys.executable, "-m", *command], folder=self.folder, log=log, environment=environment)
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_SECONDS_MAX) == 0
        finally:
            end_with_descendants([process])
