"""The JVM of PySpark, with an error stream that tells nothing when nothing is wrong."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from subprocess import PIPE
from typing import IO

NOISE = (b"WARNING: Using incubator modules: jdk.incubator.vector",)
"""Lines of the Java launcher, which no option turns off: Spark adds this module to the command of each of its JVMs."""


def start_gateway(properties: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it runs; its error stream is passed on without `NOISE`.

    Args:
        properties: Spark's; those of the driver's JVM are part of its command.
    """
    from pyspark import SparkConf, SparkContext  # heavy; only runs pay for it
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001  # as PySpark asks
        return
    conf = SparkConf().setAll(list(properties.items()))
    gateway = launch_gateway(conf, {"stderr": PIPE})  # type: ignore[no-untyped-call]  # PySpark has no types for it
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001  # the only way to pass one
    threading.Thread(target=write_errors, args=(gateway.proc.stderr,), name="java errors", daemon=True).start()


def write_errors(errors: IO[bytes]) -> None:
    """Write each line of a stream to that of this process, until its end."""
    with errors:
        for line in errors:
            if line.rstrip() not in NOISE:
                _write(line)


def _write(line: bytes) -> None:
    try:
        stream = sys.__stderr__
        os.write(2 if stream is None else stream.fileno(), line)
    except (OSError, ValueError):  # a closed stream must not block the JVM
        return
