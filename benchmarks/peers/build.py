"""Builds peers into the user's cache, when a benchmark asks for them: Java by Maven, Python by pip into a venv.

A hash of the sources and requirements names the folder, so a change builds again and two versions never mix.
Nothing of lockstep needs these packages: neither set-up nor tests build them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.errors import EnvironmentProblem

JAVA_SOURCES = Path(__file__).with_name("java")

# A first build fetches 110 MB of jars and Maven's own plugins.
BUILD_SECONDS_MAX = 1_800
_SAID_CHARACTERS = 2_000


def build_java() -> Path:
    """The folder with `classes` and `jars` of the peers in Java.

    Raises:
        EnvironmentProblem: No Maven, or the build failed.
    """
    sources = sorted(path for path in JAVA_SOURCES.rglob("*") if path.is_file())
    return _publish("java", hash_content([path.read_bytes() for path in sources]), _run_maven)


def build_environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment with some requirements.

    Raises:
        EnvironmentProblem: pip could not install them.
    """

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)], f"the environment of {name}")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        _run([*pip, *requirements], f"the packages of {name}")

    content = [sys.version.encode(), *(requirement.encode() for requirement in requirements)]
    return _publish(name, hash_content(content), install) / "bin" / "python"


def hash_content(parts: Sequence[bytes]) -> str:
    """16 hexadecimal digits that change with any part, its length or its place."""
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part) + part)
    return total.hexdigest()[:16]


def find_cache() -> Path:
    """The folder of all built peers; it may be removed at any time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lockstep" / "peers"


def _publish(name: str, digest: str, build: Callable[[Path], None]) -> Path:
    """The built folder: made where it stays, as a venv cannot be moved, and trusted once its marker is there."""
    folder = find_cache() / f"{name}-{digest}"
    marker = folder / "complete"
    if not marker.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(folder)
        marker.touch()
    return folder


def _run_maven(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise EnvironmentProblem(
            "Maven (mvn) is not installed, which builds the peers in Java",
            next_step="install maven and a JDK 17 or 21, or name other peers with --only",
        )
    with tempfile.TemporaryDirectory(prefix="peers-") as draft:
        shutil.copytree(JAVA_SOURCES, draft, dirs_exist_ok=True)
        fetched = f"-Dmaven.repo.local={folder.parent / 'maven'}"
        goals = [
            "compile",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}/jars",
        ]
        _run([maven, "-B", "-q", fetched, "-f", f"{draft}/pom.xml", *goals], "the peers in Java")
        shutil.copytree(f"{draft}/target/classes", folder / "classes")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX)
    if done.returncode:
        raise EnvironmentProblem(
            f"{what} could not be built: {(done.stdout + done.stderr)[-_SAID_CHARACTERS:].strip()}",
            next_step="read what the build says, check the network, then run again; --only names other peers",
        )
