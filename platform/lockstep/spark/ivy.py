"""Runs the Apache Ivy that ships inside pyspark, to fetch a flat list of jars."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from lockstep.errors import EnvironmentProblem
from lockstep.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Sequence

# A company's mirror of Maven Central, as a URL; the hashes in the lock make any mirror safe.
MIRROR_VARIABLE = "LOCKSTEP_MAVEN_REPOSITORY"

# 51 jars take 18 s; ten minutes is a very slow line, more is a stalled one.
FETCH_SECONDS_MAX = 600

PROGRESS_SECONDS = 2

# Ivy's words for a line that says why it failed.
FAILURE_MARKS = ("Exception", "FAILED", "not found", "ERROR", "error")


def fetch(coordinates: Sequence[str], folder: Path, *, what: str) -> Path:
    """Fetch jars into `folder`/jars and return that folder; nothing is checked here.

    Args:
        coordinates: `organisation:artifact:version` of each jar.
        folder: An existing, empty folder of the caller's own.
        what: The words for progress and errors, for example `kafka jars`.

    Raises:
        EnvironmentProblem: No Java, or Ivy could not fetch them all.
    """
    (folder / "ivy.xml").write_text(_module(coordinates))
    (folder / "settings.xml").write_text(_settings(os.environ.get(MIRROR_VARIABLE)))
    log = folder / "ivy.log"
    code = _run(_command(folder), log, folder, f"fetching {len(coordinates)} {what}")
    fetched = sum(1 for _ in (folder / "jars").glob("*.jar"))
    if code != 0 or fetched < len(coordinates):
        raise EnvironmentProblem(
            f"{what} could not be fetched ({fetched} of {len(coordinates)} arrived): {_reason(log)}",
            next_step=f"check the network (or set {MIRROR_VARIABLE} to a mirror's URL), then run again",
        )
    return folder / "jars"


def ivy_jar() -> Path:
    """The Ivy inside the installed pyspark, found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    found = sorted((home / "jars").glob("ivy-*.jar"))
    if not found:
        raise EnvironmentProblem("pyspark is not installed with its jars", next_step="run `make setup`")
    return found[-1]


def _command(folder: Path) -> list[str]:
    return [
        *(str(require_java()), f"-Divy.default.ivy.user.dir={folder}", "-cp", str(ivy_jar())),
        *("org.apache.ivy.Main", "-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml")),
        *("-cache", str(folder / "cache"), "-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"),
    ]


def _run(command: list[str], log: Path, folder: Path, doing: str) -> int:
    """Run Ivy with a clock on stderr; its exit code, or that of a killed process past the deadline."""
    deadline = time.monotonic() + FETCH_SECONDS_MAX
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while time.monotonic() < deadline:
                try:
                    return process.wait(PROGRESS_SECONDS)
                except subprocess.TimeoutExpired:
                    arrived = sum(1 for _ in (folder / "cache").rglob("*.jar"))
                    sys.stderr.write(f"{doing}: {arrived} so far" + ("\r" if sys.stderr.isatty() else "\n"))
        finally:
            process.kill()
    return process.returncode


def _reason(log: Path) -> str:
    """The line of Ivy's log that says most, for a person."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if any(mark in line for mark in FAILURE_MARKS)]
    return (telling or lines or ["Ivy said nothing"])[0]


def _module(coordinates: Sequence[str]) -> str:
    wanted = "\n".join(_dependency(*each.split(":")) for each in coordinates)
    return f"""<ivy-module version="2.0">
<info organisation="lockstep" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{wanted}
</dependencies>
</ivy-module>
"""


def _dependency(organisation: str, artifact: str, version: str) -> str:
    named = f"org={quoteattr(organisation)} name={quoteattr(artifact)} rev={quoteattr(version)}"
    return f'<dependency {named} transitive="false" conf="default-&gt;default"/>'


def _settings(mirror: str | None) -> str:
    """Where to fetch from, without the descriptors that a flat list has no use for: half the time."""
    root = f" root={quoteattr(mirror)}" if mirror else ""
    return f"""<ivysettings>
<settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers>
</ivysettings>
"""
