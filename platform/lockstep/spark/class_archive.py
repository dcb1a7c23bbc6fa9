"""Archives of loaded classes: a JVM maps classes that it would otherwise parse and verify on each start.

Java calls this class-data sharing. An archive is made once for a Java and a set of jars, by a JVM that does what
later JVMs do and writes down its classes when it ends:

    python -m lockstep.spark.spark_archive      that of Spark, in the environment that holds pyspark
    python -m lockstep.features.localdev.class_archives  those of Spark and of the local Kafka (`make setup`)

Nothing depends on one. Its name holds the Java and the jars, so that after a change of either there is none, and its
own checksum, which is compared before each use: a JVM aborts on an archive that is torn (JDK 17, seen).
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import EnvironmentProblem
from lockstep.spark.jars import fetch_ivy_jar

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET = "-Xlog:cds*=off"
"""A JVM that leaves a class out, or cannot map an archive, would print that into its own output."""


def name_archive(program: str, jars: Path, java: Path) -> str:
    """The name of the archive of a program, without the checksum.

    Args:
        program: What runs on it, for example `spark`.
        jars: The folder whose jars are the class path: the JVM compares their sizes and times as well.
        java: The java command.
    """
    home = java.resolve().parents[1]
    release = home / "release"
    facts = [str(home), release.read_text() if release.is_file() else "", str(jars)]
    for jar in sorted(jars.glob("*.jar")):
        held = jar.stat()
        facts.append(f"{jar.name} {held.st_size} {held.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return f"{program}-{digest}"


def find_archive(folder: Path, name: str) -> Path | None:
    """The whole archive of a name; None if there is none."""
    return next((path for path in sorted(folder.glob(f"{name}-*.jsa")) if path == _path(folder, name, path)), None)


def make_use_options(archive: Path | None) -> tuple[str, ...]:
    """The options of a JVM that uses an archive; none without one."""
    return () if archive is None else (f"-XX:SharedArchiveFile={archive}", QUIET)


def make_archive(folder: Path, name: str, train: Callable[[tuple[str, ...]], None]) -> Path:
    """Make an archive, unless it is there; those of the same program for another Java or other jars are removed.

    1. Run a JVM that writes down its classes when it ends. 2. Publish by one rename. 3. Remove the others.

    Args:
        folder: Its folder.
        name: By `name_archive`.
        train: Starts the JVM with the options it is given, lets it do the work of later JVMs, and waits for its end.

    Raises:
        EnvironmentProblem: This Java wrote no archive, or the folder cannot be written.
    """
    if (found := find_archive(folder, name)) is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder) as private:
            draft = Path(private) / "classes.jsa"
            train((f"-XX:ArchiveClassesAtExit={draft}", QUIET))  # 1
            archive = draft.replace(_path(folder, name, draft))  # 2
    except OSError as error:
        raise EnvironmentProblem(
            f"no archive of Java classes was made: {error}", next_step="go on without: a start takes some seconds more"
        ) from error
    for other in folder.glob(f"{name.partition('-')[0]}-*.jsa"):  # 3
        if other != archive:
            other.unlink(missing_ok=True)
    return archive


def _path(folder: Path, name: str, content: Path) -> Path:
    """Path of the archive with this content."""
    with content.open("rb") as handle:
        return folder / f"{name}-{hashlib.file_digest(handle, 'blake2b').hexdigest()[:16]}.jsa"


def find_spark_archive(java: Path) -> Path | None:
    """That of Spark: in this environment, whose pyspark it goes with."""
    return find_archive(find_spark_folder(), name_archive("spark", fetch_ivy_jar().parent, java))


def find_spark_folder() -> Path:
    """Path of the archive of Spark."""
    return Path(sys.prefix) / "var" / "lockstep"
