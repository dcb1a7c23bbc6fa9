"""An installation of a release: a project, its tables and its Kafka, as an archive of files.

    python -m tests.integration.releases.installation

Makes the archive of this checkout's version once, at its release: a test opens the archives of all releases with the
current code.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.producer import create_topic
from lockstep.settings import KafkaSettings
from tests.support.feed import ProducerRecord, append

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
STREAMS = ("levels", "meters")
DELIVERY = "levels_out"
SAVEPOINT = "first"


@dataclass(frozen=True)
class Installation:
    """A project with tables, and the Kafka of its topics.

    Attributes:
        folder: Holds `project`, `tables` and `kafka`.
        broker: The running Kafka of the folder.
    """

    folder: Path
    broker: Broker

    def call(self, *arguments: str) -> str:
        """Call lockstep and return its output; it must succeed."""
        command = [sys.executable, "-m", "lockstep.cli", *arguments]
        environment = {**os.environ, **self._environment()}
        done = subprocess.run(
            command, cwd=self.folder / "project", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Call lockstep and return its JSON document."""
        return json.loads(self.call(*arguments, "--json"))  # type: ignore[no-any-return]  # a document

    def send(self, first: int, count: int) -> None:
        """Send messages of two sessions to each stream, starting at a number."""
        for number in range(first, first + count):
            levels = [["bid", f"{100 + number % 7}.50", number % 5], ["ask", f"{200 + number % 3}.00", number]]
            change = {"number": number, "is_snapshot": number % 30 == 1, "levels": levels}
            reading = {"number": number, "value": number / 2}
            for session in ("a", "b"):
                self._send("levels.x", session, change)
                self._send("meters.x", session, reading)

    def send_unusable(self, number: int) -> None:
        """Send a level that its rule quarantines, and a message that is not JSON."""
        self._send("levels.x", "c", {"number": number, "is_snapshot": True, "levels": [["bid", "1.00", 5_000]]})
        append(self.broker.bootstrap_servers, "levels.x", [ProducerRecord("a", b"{")])

    def read(self) -> None:
        """Read all messages, and let the followers read the tables."""
        for stream in STREAMS:
            self.call("run", stream, "--available-now")
        self.call("deliver", DELIVERY)
        self.call("current", "levels")

    def describe(self) -> dict[str, Any]:
        """Return the rows and the proof of each stream, and the status of each follower."""
        proofs = {stream: self.ask("verify", stream) for stream in STREAMS}
        counts = {stream: self.ask("query", f"SELECT count(*) FROM {stream}")["rows"][0][0] for stream in STREAMS}  # noqa: S608
        return {
            "rows": counts,
            "proofs": {stream: proof["status"] for stream, proof in proofs.items()},
            "followers": {f"{each['kind']} {each['name']}": each["status"] for each in proofs["levels"]["followers"]},
        }

    def _send(self, topic: str, session: str, message: Mapping[str, object]) -> None:
        append(self.broker.bootstrap_servers, topic, [ProducerRecord(session, json.dumps(message).encode())])

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(REPOSITORY / "platform"),
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": self.broker.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(self.folder / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(self.folder / "local"),
            "LOCKSTEP_CODE_ROOT": str(self.folder / "code"),
            "LOCKSTEP_SPARK__MASTER": "local[1,3]",
            "LOCKSTEP_SPARK__DRIVER_MEMORY": "512m",
        }


def make_history(installation: Installation) -> None:
    """Batches, a savepoint, a rewind, quarantined messages, compaction and followers."""
    for topic in ("levels.x", "meters.x", "out.levels"):
        create_topic(KafkaSettings(bootstrap_servers=installation.broker.bootstrap_servers), topic)
    installation.send(1, 20)
    installation.read()
    for stream in STREAMS:
        installation.call("savepoint", "make", stream, SAVEPOINT, "--why", "of a release")
    installation.send(21, 10)
    installation.send_unusable(31)
    for stream in STREAMS:
        installation.call("run", stream, "--available-now")
        installation.call("rewind", stream, "--to", SAVEPOINT, "--why", "tried", "--yes")
    installation.read()
    installation.call("compact", "levels")


def leave_out(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry of an archive, or None for files of the machine that made it."""
    is_local = "__pycache__" in entry.name or entry.name in {"kafka/broker.log", "kafka/server.properties"}
    return None if is_local else entry


def main() -> None:
    """Make the archive of this version."""
    target = HERE / f"{version('lockstep')}.tar.xz"
    if target.exists():
        sys.exit(f"{target.name} is there: tables of a release are kept as they were")
    folder = Path(tempfile.mkdtemp(prefix="lockstep-release-"))
    broker = Broker.start(folder / "kafka")
    try:
        shutil.copytree(HERE / "project", folder / "project")
        made = Installation(folder, broker)
        make_history(made)
        description = json.dumps(made.describe(), indent=2).encode()
    finally:
        broker.stop()
    with tarfile.open(target, "w:xz") as archive:
        for name in ("project", "tables", "kafka"):
            archive.add(folder / name, name, filter=leave_out)
        entry = tarfile.TarInfo("description.json")
        entry.size = len(description)
        archive.addfile(entry, io.BytesIO(description))
    shutil.rmtree(folder)
    sys.stdout.write(f"{target.stat().st_size} bytes: {description.decode()}\n")


if __name__ == "__main__":
    main()
