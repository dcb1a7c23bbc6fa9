"""Pinned, hashed jars through Ivy.

`jars.lock` is a flat list, so Apache Ivy (which ships inside pyspark) has nothing to resolve: seconds instead
of minutes, and no unlisted version. The list's hash names the folder in the user's cache, so that
two versions of lockstep never share one, and every jar is hashed again on each start: a jar that a mirror or a disk
has changed is detected before it can run.

    python -m lockstep.spark.jars          fetch missing jars
    python -m lockstep.spark.jars --lock   rewrite the hashes (maintainers, after changing a version)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from lockstep.errors import EnvironmentProblem
from lockstep.spark.java import require_java
from lockstep.time_limit import SLOW, describe_silence, has_ended_within

if TYPE_CHECKING:
    from collections.abc import Sequence


# A company's mirror of Maven Central, as a URL; the hashes in the lock make any mirror safe.
MIRROR_VARIABLE = "LOCKSTEP_MAVEN_REPOSITORY"

# 51 jars take 18 s. A slow line may take as long as it likes, as long as jars arrive.
SILENCE_SECONDS_MAX = 600

PROGRESS_SECONDS = 2

# Words of an Ivy log line that gives the reason of a failure.
FAILURE_MARKS = ("Exception", "FAILED", "not found", "ERROR", "error")


def fetch_jars(jars: Sequence[Jar], folder: Path, *, what: str) -> Path:
    """Fetch jars into `folder`/jars and return that folder, without checks.

    Args:
        jars: The jars; their hashes are not read.
        folder: An existing, empty folder that belongs to the caller.
        what: The words for progress and errors, for example `kafka jars`.

    Raises:
        EnvironmentProblem: No Java, or Ivy could not fetch them all.
    """
    (folder / "ivy.xml").write_text(_module(jars))
    (folder / "settings.xml").write_text(_settings(os.environ.get(MIRROR_VARIABLE)))
    log = folder / "ivy.log"
    code = _run(_command(folder), log, folder, f"fetching {len(jars)} {what}")
    fetched = sum(1 for _ in (folder / "jars").glob("*"))
    if code is None:
        arrived = f"{_count_arrived(folder)} of {len(jars)} {what} arrived"
        raise EnvironmentProblem(
            f"{arrived}, then {describe_silence('the repository of jars', SILENCE_SECONDS_MAX, verb='send another')}",
            next_step=f"{SLOW}: run again, or set {MIRROR_VARIABLE} to the URL of a nearer mirror",
        )
    if code != 0 or fetched < len(jars):
        raise EnvironmentProblem(
            f"{what} could not be fetched ({fetched} of {len(jars)} arrived): {_reason(log)}",
            next_step=f"check the network (or set {MIRROR_VARIABLE} to a mirror's URL), then run again",
        )
    return folder / "jars"


def fetch_ivy_jar() -> Path:
    """The Ivy inside the installed pyspark, found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    jars = sorted((home / "jars").glob("ivy-*.jar"))
    if not jars:
        raise EnvironmentProblem("pyspark is not installed with its jars", next_step="run `make setup`")
    return jars[-1]


def _command(folder: Path) -> list[str]:
    return [
        *(str(require_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),  # a start of a second
        *(f"-Divy.default.ivy.user.dir={folder}", "-cp", str(fetch_ivy_jar())),
        *("org.apache.ivy.Main", "-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml")),
        *("-cache", str(folder / "cache"), "-retrieve", f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]


def _run(command: list[str], log: Path, folder: Path, doing: str) -> int | None:
    """Run Ivy with a progress display on stderr; its exit code, or None if no jar arrived for too long."""
    arrived = 0
    silent_since = time.monotonic()
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while not has_ended_within(process, PROGRESS_SECONDS):
                arrived_before = arrived
                arrived = _count_arrived(folder)
                sys.stderr.write(f"{doing}: {arrived} so far" + ("\r" if sys.stderr.isatty() else "\n"))
                if arrived > arrived_before:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                    return None
        finally:
            process.kill()
    return process.returncode


def _count_arrived(folder: Path) -> int:
    """Fetched files in the cache, without the files that Ivy writes for itself."""
    files = (path for path in (folder / "cache").rglob("*") if path.is_file())
    return sum(path.suffix not in {".xml", ".properties", ".lck", ".part"} for path in files)


def _reason(log: Path) -> str:
    """The most informative line of Ivy's log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if any(mark in line for mark in FAILURE_MARKS)]
    return (telling or lines or ["Ivy said nothing"])[0]


def _module(jars: Sequence[Jar]) -> str:
    wanted = "\n".join(map(_dependency, jars))
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="lockstep" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{wanted}
</dependencies>
</ivy-module>
"""


def _dependency(jar: Jar) -> str:
    names = f"org={quoteattr(jar.organisation)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)}"
    kind = quoteattr(jar.extension)
    file = f"<artifact name={quoteattr(jar.artifact)} type={kind} ext={kind} m:classifier={quoteattr(jar.classifier)}/>"
    return f'<dependency {names} transitive="false" conf="default-&gt;default">{file}</dependency>'


def _settings(mirror: str | None) -> str:
    """Ivy settings: the repository, without the descriptors that a flat list does not need: half the time."""
    root = f" root={quoteattr(mirror)}" if mirror else ""
    return f"""<ivysettings>
<settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"{root}/></resolvers>
</ivysettings>
"""


LOCK = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True)
class Jar:
    """One line of the lock.

    Attributes:
        group: What loads it: `delta` and `s3` (Spark), `kafka` (the local Kafka), `s3proxy` (an object store of tests).
        organisation: The publisher, for example `io.delta`.
        artifact: The name, for example `delta-storage`.
        version: The exact version.
        classifier: Which of the artifact's files; empty for the main file.
        extension: The type of the file, for example `tar.gz`; all but a few are `jar`.
        sha256: The hash of the file, in hexadecimal.
    """

    group: str
    organisation: str
    artifact: str
    version: str
    classifier: str
    extension: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + f".{self.extension}"

    @property
    def coordinates(self) -> str:
        """Organisation, artifact, version and any classifier, then `@` and the extension if it is not `jar`."""
        names = ":".join(filter(None, (self.organisation, self.artifact, self.version, self.classifier)))
        return names if self.extension == "jar" else f"{names}@{self.extension}"


def resolve_jars(group: str, *, lock: Path = LOCK) -> tuple[Path, ...]:
    """The checked jars of a group, from the cache or the network.

    1. Read the cache. 2. Fetch into a private folder. 3. Check. 4. Publish it by one rename; if
    another process was faster, its folder stays. 5. Check the files that a JVM is about to load.

    Args:
        group: A group of the list.
        lock: The list of jars.

    Raises:
        EnvironmentProblem: No network, no Java, or a jar whose hash is not the lock's.
    """
    jars = read_lock(lock, group)
    folder = find_cache_folder(jars)
    if not folder.exists():  # 1
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{group}-", dir=folder.parent) as draft:
            fetched = fetch_jars(jars, Path(draft), what=f"{group} jars")  # 2
            check_jars_lock(jars, fetched)  # 3
            _publish(fetched, folder)  # 4
    return check_jars_lock(jars, folder)  # 5


def read_lock(lock: Path, group: str) -> tuple[Jar, ...]:
    """The jars of one group, in the lock's order.

    Raises:
        EnvironmentProblem: The lock names no such group.
    """
    jars = tuple(jar for jar in parse_lock(lock.read_text()) if jar.group == group)
    if not jars:
        raise EnvironmentProblem(f"{lock} lists no jars of group {group!r}", next_step="reinstall lockstep")
    return jars


def parse_lock(text: str) -> tuple[Jar, ...]:
    """All jars of a lock's text; empty lines and those with # in front are skipped."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(_jar(group, coordinates, sha256) for group, coordinates, sha256 in lines)


def find_cache_folder(jars: tuple[Jar, ...]) -> Path:
    """The folder of these jars in the user's cache; any change of the list makes another folder."""
    lines = "\n".join(f"{jar.coordinates} {jar.sha256}" for jar in jars)
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lockstep" / "jars" / f"{jars[0].group}-{digest}"


def check_jars_lock(jars: tuple[Jar, ...], folder: Path) -> tuple[Path, ...]:
    """The paths of the jars in `folder`, each with the hash of the lock.

    Raises:
        EnvironmentProblem: Names the first jar that is missing or another, with both hashes.
    """
    for jar in jars:
        sha256 = compute_sha256(folder / jar.file_name)
        if sha256 != jar.sha256:
            raise EnvironmentProblem(
                f"jar {jar.coordinates} is not the locked one: expected SHA-256 {jar.sha256}, found {sha256}",
                next_step=f"do not load it; remove {folder}, find out who changed it, then run again",
            )
    return tuple(folder / jar.file_name for jar in jars)


def compute_sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal, or `no file`."""
    if not path.is_file():
        return "no file"
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def renew_lock(lock: Path = LOCK) -> None:
    """Fetch every listed jar unchecked and write the hashes found; a person reviews the difference."""
    text = lock.read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    jars = parse_lock(text)
    with tempfile.TemporaryDirectory() as draft:
        folder = fetch_jars(jars, Path(draft), what="jars")
        hashed = [replace(jar, sha256=compute_sha256(folder / jar.file_name)) for jar in jars]
    lines = [f"{jar.group} {jar.coordinates} {jar.sha256}" for jar in hashed]
    lock.write_text("\n".join([*head, *lines]) + "\n")


def _jar(group: str, coordinates: str, sha256: str) -> Jar:
    names, _, extension = coordinates.partition("@")
    organisation, artifact, version, *classifier = names.split(":")
    return Jar(group, organisation, artifact, version, "".join(classifier), extension or "jar", sha256)


def _publish(fetched: Path, folder: Path) -> None:
    try:
        fetched.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
        shutil.rmtree(fetched)


def main() -> None:
    """Fetch all groups, or rewrite the lock."""
    if sys.argv[1:] == ["--lock"]:
        renew_lock()
        return
    for group in ("delta", "s3", "kafka"):
        sys.stdout.write(f"{find_cache_folder(read_lock(LOCK, group))}: {len(resolve_jars(group))} jars\n")


if __name__ == "__main__":
    main()
