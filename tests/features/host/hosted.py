"""An installation of several equal streams and their host process."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lockstep import Every
from lockstep.features.localdev.processes import start_child
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import adding
from tests.support.descendants import end_with_descendants
from tests.support.feed import Feed, folded, update
from tests.support.installation import wait_until
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.declare.stream import AnyStream
    from lockstep.table.head import Head

REPOSITORY = Path(__file__).parents[3]
TRIGGER_SECONDS = 0.3
HANGING = 3
"""The stream whose commit may hang."""
DECLARED = """
from pathlib import Path

from tests.features.host.hanging import hang_commits
from tests.features.host.hosted import make_stream

hang_commits(Path({folder!r}), {hanging!r})
streams = [make_stream({family!r}, number) for number in range({count})]
"""
WAIT_SECONDS = 180.0
STOP_SECONDS_MAX = 60.0


def make_stream(family: str, number: int) -> AnyStream:
    """Return the stream over the topics with this number."""
    stream = adding(rf"{family}\.{number}")
    return dataclasses.replace(stream, name=f"adding_{number}", trigger=Every(seconds=TRIGGER_SECONDS))


@dataclasses.dataclass(frozen=True)
class Hosted:
    """The streams, their topics and the sent messages.

    Attributes:
        feed: The producer.
        folder: Folder of the project, the tables and the log.
        count: Number of streams.
        sent: The values of each stream, in order.
    """

    feed: Feed
    folder: Path
    count: int
    sent: dict[int, list[bytes]]

    @classmethod
    def make(cls, feed: Feed, folder: Path, count: int) -> Hosted:
        """Declare the streams in a project and create their topics."""
        (folder / "assets").mkdir()
        (folder / "tables").mkdir()
        declared = DECLARED.format(folder=str(folder), hanging=f"adding_{HANGING}", family=feed.family, count=count)
        (folder / "assets" / "hosted.py").write_text(declared)
        for number in range(count):
            feed.create(str(number))
        return cls(feed, folder, count, {number: [] for number in range(count)})

    @property
    def numbers(self) -> range:
        """Return the numbers of all streams."""
        return range(self.count)

    def runs(self, number: int) -> LocalRuns:
        """Return the tables of a stream."""
        return LocalRuns(make_stream(self.feed.family, number), self.feed.bootstrap_servers, self.folder)

    def head(self, number: int) -> Head | None:
        """Return the head of a stream's table."""
        table = self.runs(number).folders.table
        return OutputLog(table).base().head if delta_log.has_log(table) else None

    def send(self, number: int, *values: bytes) -> None:
        """Send messages to a stream."""
        self.feed.send(f"{self.feed.family}.{number}", values)
        self.sent[number] += values

    def send_updates(self, number: int, count: int) -> None:
        """Send the next updates of the session."""
        begin = len(self.sent[number]) + 1
        self.send(number, *(update(sequence, a=sequence) for sequence in range(begin, begin + count)))

    def is_whole(self, number: int) -> bool:
        """Return whether the table has the rows of all sent messages."""
        runs = self.runs(number)
        if (head := self.head(number)) is None or head.batch == 0:
            return False
        expected = folded([(offset, "s", value) for offset, value in enumerate(self.sent[number])])
        return runs.rows(f"{self.feed.family}.{number}") == expected

    def wait_until_whole(self, *numbers: int) -> None:
        """Wait until the tables have all rows, exactly once and in order."""
        for number in numbers:
            wait_until(lambda: self.is_whole(number), f"the rows of stream {number}", WAIT_SECONDS)  # noqa: B023  # called here

    def prove(self, number: int) -> None:
        """Prove a stream against the log of Kafka."""
        runs = self.runs(number)
        report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
        assert report.status is InvariantStatus.PROVEN, (report.violations, report.notes)

    @contextmanager
    def host(self) -> Iterator[HostProcess]:
        """Run `lockstep host` during the block."""
        log = self.folder / f"host-{uuid.uuid4().hex[:6]}.log"
        process = start_child(
            [sys.executable, "-m", "lockstep.cli", "host"],
            folder=self.folder,
            log=log,
            environment={
                "PYTHONPATH": f"{REPOSITORY / 'platform'}:{REPOSITORY}",
                "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.feed.bootstrap_servers,
                "LOCKSTEP_TABLE_ROOT": str(self.folder / "tables"),
                "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
                "LOCKSTEP_SPARK__MASTER": "local[2,3]",
            },
        )
        try:
            yield HostProcess(process, log)
        finally:
            end_with_descendants([process])


@dataclasses.dataclass(frozen=True)
class HostProcess:
    """A running host.

    Attributes:
        process: Its process.
        log: Its output.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill the host with -9 and wait until its JVM and workers have ended."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        _, alive = psutil.wait_procs(below, timeout=STOP_SECONDS_MAX)
        assert alive == []

    def stop(self) -> str:
        """End the host with SIGTERM, check that no process is left, and return its output."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        code = self.process.wait(STOP_SECONDS_MAX)
        text = self.log.read_text()
        assert code == 0, text
        _, alive = psutil.wait_procs(below, timeout=STOP_SECONDS_MAX)
        assert alive == []
        return text
