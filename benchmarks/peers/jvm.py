"""Starts a peer in Java."""

from __future__ import annotations

import os

from benchmarks.peers.build import build_java
from lockstep.spark.java import require_java

# The collector with the least CPU time for throughput; a fixed heap, so that its growth is in no figure.
_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")

# What Flink's own scripts open on Java 17.
_OPENED = ("lang", "net", "io", "nio", "util", "util.concurrent", "time", "text", "lang.reflect")


def run_java(main: str, *arguments: str) -> None:
    """Become a JVM that runs a class: this process has no part in the measured time but its own start."""
    built = build_java()
    java = str(require_java())
    opened = (f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED)
    command = [java, *_OPTIONS, *opened, "-cp", f"{built}/classes:{built}/jars/*", main, *arguments]
    os.execv(java, command)  # noqa: S606  # no shell is wanted
