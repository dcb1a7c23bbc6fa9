"""This machine: Java, the locked jars, the ports that the web UI and Spark take."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from lockstep.errors import EnvironmentProblem
from lockstep.operations.finding import Diagnosis, error, ok, warning
from lockstep.spark.jars import LOCK, cache_folder, check, read_lock
from lockstep.spark.java import find_java, java_problem

PORTS = {3000: "Dagster's web UI"}
"""Ports that are taken by default. Spark's own UI takes the next free one by itself."""

FETCHED_BY = {
    "delta": "the first start of Spark fetches them",
    "kafka": "only the bundled Kafka needs them: make demo, make up and the tests fetch them",
}


def java() -> Iterator[Diagnosis]:
    """The Java that Spark would take."""
    problem = java_problem(os.environ)
    if problem is not None:
        yield error("Java", problem.what, problem.next_step)
    else:
        yield ok("Java", f"{find_java(os.environ)} runs Spark")


def jars() -> Iterator[Diagnosis]:
    """The jars in the cache, each hashed; nothing is fetched."""
    for group in ("delta", "kafka"):
        name, locked = f"jars ({group})", read_lock(LOCK, group)
        folder = cache_folder(locked)
        if not folder.exists():
            yield warning(name, f"not in {folder} yet", f"{FETCHED_BY[group]}; or now: python -m lockstep.spark.jars")
            continue
        try:
            check(locked, folder)
        except EnvironmentProblem as problem:
            yield error(name, problem.problem, problem.next_step)
        else:
            yield ok(name, f"{len(locked)} jars, every SHA-256 as locked")


def ports() -> Iterator[Diagnosis]:
    """Whether a server could listen; one that does may be the very one that is meant."""
    for port, purpose in PORTS.items():
        with socket.socket() as probe:
            probe.settimeout(1)
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        if taken:
            yield warning(f"port {port}", f"in use: by {purpose}, or by another program", "fine if it is Dagster")
        else:
            yield ok(f"port {port}", f"free for {purpose}")
