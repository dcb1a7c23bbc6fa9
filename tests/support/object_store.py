"""A real object store on this machine: S3's protocol over a folder, with conditional writes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lockstep.features.localdev.processes import find_free_ports, is_free, start_child
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import require_java
from tests.support.installation import wait_until

BUCKET = "lockstep"
KEY, SECRET = "tests", "no secret"
"""The only credentials that the store accepts."""


JAVA_OPTIONS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a short-lived process: little heap, and no second compiler."""


@dataclass
class ObjectStore:
    """An S3Proxy, whose objects are files of a folder.

    Attributes:
        folder: Holds a folder for each bucket.
        environment: Environment variables of its clients.
    """

    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start the store with one bucket."""
        (port,) = find_free_ports(1)
        (folder / "data" / BUCKET).mkdir(parents=True)
        settings = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "s3proxy.endpoint": f"http://127.0.0.1:{port}",
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(folder / "data"),
        }
        (folder / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        environment = {
            "AWS_ENDPOINT_URL": settings["s3proxy.endpoint"],
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "NO_PROXY": ",".join(filter(None, ("127.0.0.1", os.environ.get("NO_PROXY")))),
        }
        store = cls(folder / "data", environment)
        store.resume()
        return store

    def resume(self) -> None:
        """Start the process at the same address."""
        jar = str(*resolve_jars("s3proxy"))
        command = [str(require_java()), *JAVA_OPTIONS, "-jar", jar, "--properties", "settings"]
        port = int(self.environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
        home = self.folder.parent
        self.process = process = start_child(command, folder=home, log=home / "log")
        wait_until(lambda: not is_free(port) or process.poll() is not None, "the object store")

    def stop(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()

    def find_file(self, address: Path) -> Path:
        """Return the file of an object, or the folder of a prefix."""
        return self.folder.joinpath(*address.parts[1:])
