"""A real schema registry on this machine: Apicurio, whose API is that of Confluent's registry. It stores in memory."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import requests

from lockstep.features.localdev.processes import find_free_ports, start_child
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import require_java
from tests.support.installation import wait_until

LOCK = Path(__file__).with_name("registry.lock")
JAVA_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
PATH = "/apis/ccompat/v7"
TIMEOUT_SECONDS = 20


@dataclass
class RealRegistry:
    """A registry without accounts.

    Attributes:
        folder: Its program and its log.
        port: Its port on loopback, also after a restart.
    """

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] = field(init=False)

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Unpack the program into a folder and start it."""
        (archive,) = resolve_jars("registry", lock=LOCK)
        with tarfile.open(archive) as program:
            program.extractall(folder, filter="data")
        (port,) = find_free_ports(1)
        registry = cls(folder, port)
        registry.resume()
        return registry

    @property
    def url(self) -> str:
        """The address for clients of Confluent's API."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    def resume(self) -> None:
        """Start it at its port. It has no schemas, because it stores them in memory."""
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "java.io.tmpdir": str(self.folder),
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        (program,) = self.folder.glob("*-runner.jar")
        command = [str(require_java()), *JAVA_OPTIONS, *options, "-jar", program.name]
        self._process = start_child(command, folder=self.folder, log=self.folder / "log")
        try:
            wait_until(self._has_answered, "the schema registry")
        except BaseException:
            self.kill()
            raise

    def _has_answered(self) -> bool:
        """Whether it answers. Raises AssertionError with its log if it has ended."""
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            return requests.get(f"{self.url}/subjects", timeout=TIMEOUT_SECONDS).ok
        except requests.ConnectionError:
            return False

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Mapping[str, object]] = ()
    ) -> int:
        """Register a schema as a producer's serializer does.

        Args:
            subject: Its subject.
            schema: Its text.
            kind: `AVRO` or `PROTOBUF`.
            references: The schemas that it imports: name, subject and version of each.

        Returns:
            Its id.
        """
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        answer = requests.post(f"{self.url}/subjects/{subject}/versions", json=body, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        return int(answer.json()["id"])

    def require_compatibility(self, subject: str, level: str) -> None:
        """Set the compatibility level of a subject, for example `BACKWARD`."""
        body = {"compatibility": level}
        requests.put(f"{self.url}/config/{subject}", json=body, timeout=TIMEOUT_SECONDS).raise_for_status()
