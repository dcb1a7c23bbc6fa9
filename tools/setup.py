"""Makes `.venv`: what requirements.lock says, checked by hash, and this project itself on top.

Runs on a bare Python of the system, before anything is installed: standard library only. A finished
environment carries a stamp with the hash of all it was made from, so that the next run has nothing to do; an
environment without a stamp is half made and is built anew. Every failure is one line with its remedy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".made-from"

# Parts beside the environment, by name; each has a stamp. Without names on the command line all are made.
EXTENSION = "extension"
JAVA_START = "java"
PARTS = (EXTENSION, JAVA_START)
ENVIRONMENT_ALONE = "environment"
TOOLS = ROOT / ".tools"
LOCK = ROOT / "requirements.lock"

# What the image installs: the same versions without the tools of development.
RUNTIME_LOCK = ROOT / "requirements-runtime.lock"
RUNTIME_EXTRAS = ("protobuf", "registry", "s3", "postgres", "aws")

UV_PIN = ROOT / "tools" / "uv-requirements.txt"

# pyspark comes as source only: what builds it runs code here, so it is locked by hash as well.
BUILDERS = ROOT / "tools" / "build-requirements.txt"

# The optional extension in Rust, and the oldest Rust that builds it.
NATIVE = ROOT / "native"
RUST_MIN = (1, 85)

# The product's own rule for Java; the file needs nothing but the standard library.
JAVA = ROOT / "platform" / "lockstep" / "spark" / "java.py"

# The environment takes 1.7 GB, and the downloads' cache lies beside it while they are unpacked.
FREE_BYTES_MIN = 2_500_000_000

# Said once every so many seconds where no terminal can show a running clock (CI logs).
QUIET_NOTE_SECONDS = 10

# How uv and pip say that nobody answered; pip also takes a registry that is silent for one that is empty.
UNREACHABLE = (
    "dns error|failed to lookup|name resolution|error sending|Failed to fetch|Failed to establish"
    "|Connection refused|certificate|No matching distribution"
)

# How uv and pip tell of a time-out, whose cause they do not know.
SILENT = "timed out|timeout"

# What a failed installer says, what it means here and what to do. First match wins.
CAUSES = (
    ("No space left|os error 28", "the disk is full", "free 2.5 GB, then run the same command again"),
    (
        SILENT,
        "what it downloads from did not answer in time",
        "it may only be slow: run the same command again; what has arrived is kept",
    ),
    (
        UNREACHABLE,
        "the package registry could not be reached",
        "check the network (behind a mirror: set PIP_INDEX_URL), then run the same command again",
    ),
    (
        "hash mismatch|do not match the hashes",
        "a package is not what the lock says",
        "do not use it; run again, and report it if it stays so",
    ),
)

# How much of an unknown failure is shown: enough for a build's own error, not its whole trace.
UNKNOWN_LINES_MAX = 12


class Progress:
    """The number of the current step, for a line of progress."""

    def __init__(self) -> None:
        self.step = 0
        self.steps = 0

    def start_step(self) -> str:
        """Start the next step; returns its number of all, or nothing for a single step."""
        self.step += 1
        self.steps = max(self.steps, self.step)
        return f"step {self.step} of {self.steps}: " if self.steps > 1 else ""


PROGRESS = Progress()

# The virtual environment, the packages, and the project itself.
ENVIRONMENT_STEPS = 3


class ProblemError(Exception):
    """Setup cannot go on; the text is one line: what is wrong, and what to do."""


def main() -> int:
    """Set up the named parts, or with `--lock` renew the lock; print one line if it cannot be done."""
    asked = sys.argv[1:]
    try:
        with one_at_a_time():
            if asked == ["--lock"]:
                renew_lock()
            else:
                set_up(find_parts(asked))
    except ProblemError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; nothing half-made is left", file=sys.stderr)
        return 130
    return 0


def find_parts(asked: list[str]) -> list[str]:
    """The parts to make: those that are named, or all. The extension needs Rust."""
    unknown = set(asked) - {*PARTS, ENVIRONMENT_ALONE}
    if unknown:
        raise ProblemError(f"{', '.join(sorted(unknown))} is none of {', '.join((ENVIRONMENT_ALONE, *PARTS))}")
    return [part for part in PARTS if part in (asked or PARTS) and (part != EXTENSION or has_rust())]


def set_up(parts: list[str]) -> None:
    """Make the environment and some parts, each unless its stamp says that it is made. The product runs without parts.

    Each target of the Makefile names the parts that it needs: checkers wait for neither Rust nor Java.
    """
    if JAVA_START in parts:
        check_java()
    made_from = fingerprint()
    is_made = stamped() == made_from
    due = [part for part in parts if not is_made or read_stamp(part) != part_fingerprint(part)]
    PROGRESS.steps = len(due) + (0 if is_made else ENVIRONMENT_STEPS - VENV.exists())
    PROGRESS.steps += (not is_made or EXTENSION in due) and find_pinned_uv() is None
    if not is_made:
        make_environment(made_from)
    for part in due:
        if part == EXTENSION:
            build_extension()
        else:
            prepare_java()
        part_stamp(part).write_text(part_fingerprint(part))


def make_environment(made_from: str) -> None:
    """Make the environment. An interrupt leaves nothing behind.

    1. Check the space. 2. Remove a half-made environment. 3. Install the lock. 4. Install this project. 5. Stamp.
    """
    check_space()  # 1
    if not stamped().startswith(f"{ROOT} "):  # 2
        shutil.rmtree(VENV, ignore_errors=True)
    try:
        STAMP.unlink(missing_ok=True)
        uv = find_uv()
        if not VENV.exists():
            run("making .venv", [uv, "venv", "--quiet", "--python", sys.executable, str(VENV)])
        install_lock(uv)  # 3
        install_project(uv)  # 4
        STAMP.write_text(made_from)  # 5
    finally:
        if not STAMP.exists():
            shutil.rmtree(VENV, ignore_errors=True)


def renew_lock() -> None:
    """Write both locks anew from pyproject.toml: hashes, for every Python we support, no addresses.

    The runtime lock is constrained by the other one: the image runs the versions that the tests ran with.
    """
    uv = find_uv()
    compile_lock(uv, LOCK, "--extra", "dev")
    extras = [option for extra in RUNTIME_EXTRAS for option in ("--extra", extra)]
    compile_lock(uv, RUNTIME_LOCK, *extras, "--constraints", str(LOCK))


def compile_lock(uv: str, lock: Path, *options: str) -> None:
    """Write one lock. It names extras: for pip "gql==4.0.0" does not pin "gql[requests]", and it refuses hashes."""
    every = ["--quiet", "--universal", "--generate-hashes", "--no-strip-extras", "--output-file", str(lock)]
    run(f"renewing {lock.name}", [uv, "pip", "compile", *every, *options, str(ROOT / "pyproject.toml")])


def fingerprint() -> str:
    """What the environment is made from, and where: the scripts in a venv name their interpreter."""
    return f"{ROOT} {compute_digest([LOCK, ROOT / 'pyproject.toml'])}"


def part_fingerprint(part: str) -> str:
    """The environment in which a part is made, and the sources of the extension."""
    sources: list[Path] = []
    if part == EXTENSION:
        for pattern in ("*.toml", "*.pyi", "src/*.rs"):
            sources += sorted(NATIVE.glob(pattern))
    return f"{fingerprint()} {compute_digest(sources)}"


def compute_digest(files: list[Path]) -> str:
    """SHA-256 of the content of some files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def part_stamp(part: str) -> Path:
    """The file of a part's stamp."""
    return VENV / f".{part}-made-from"


def read_stamp(part: str) -> str:
    """The stamp of a part, else an empty text."""
    stamp = part_stamp(part)
    return stamp.read_text() if stamp.exists() else ""


def stamped() -> str:
    """The stamp of a finished environment whose interpreter is still there, else an empty text."""
    alive = os.access(VENV / "bin" / "python", os.X_OK)
    return STAMP.read_text() if alive and STAMP.exists() else ""


def install_lock(uv: str) -> None:
    """Make the environment equal to the lock: nothing missing, nothing else.

    Compiled at once: a run starts a dozen Python processes, and where none may write its compiled
    modules each would compile Dagster, pandas and Spark anew, several seconds of CPU every time.
    """
    options = ["--compile-bytecode", "--require-hashes", "--build-constraints", str(BUILDERS), "--python", str(VENV)]
    run("installing the locked packages (800 MB to download the first time)", [uv, "pip", "sync", *options, str(LOCK)])


def install_project(uv: str) -> None:
    """Install lockstep as editable; its builder comes from the lock, so nothing is downloaded here."""
    options = ["--no-deps", "--no-build-isolation", "--python", str(VENV)]
    run("installing lockstep itself", [uv, "pip", "install", *options, "--editable", str(ROOT)])


def build_extension() -> None:
    """Build `lockstep-native` and install it: some of the work then takes a third of the CPU time; none needs it."""
    uv = find_uv()
    options = ["--no-deps", "--build-constraints", str(BUILDERS), "--python", str(VENV)]
    try:
        run(
            "building lockstep-native",
            [uv, "pip", "install", *options, "--reinstall-package=lockstep-native", str(NATIVE)],
        )
    except ProblemError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        print(
            "setup: done all the same: lockstep works without its extension; again: make clean setup", file=sys.stderr
        )


def has_rust() -> bool:
    """Whether there is a Rust that builds the extension."""
    cargo = shutil.which("cargo")
    said = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False).stdout if cargo else ""
    version = re.match(r"cargo (\d+)\.(\d+)", said)
    return version is not None and tuple(map(int, version.groups())) >= RUST_MIN


def prepare_java() -> None:
    """Fetch the jars and archive their classes: each start of Spark or Kafka then takes seconds less; none needs it."""
    try:
        run("preparing Java", [str(VENV / "bin" / "python"), "-m", "lockstep.features.localdev.class_archives"])
    except ProblemError as problem:
        print(f"setup: {problem}\nsetup: done all the same: the first start fetches what it needs", file=sys.stderr)


def find_uv() -> str:
    """The pinned uv, fetched into the project's own folder if it is nowhere."""
    return find_pinned_uv() or fetch_uv(TOOLS / f"uv-{pinned_version()}")


def find_pinned_uv() -> str | None:
    """The uv on PATH if it is the pinned one, else the pinned one in the project's own folder; None without both."""
    version = pinned_version()
    for found in (shutil.which("uv"), str(TOOLS / f"uv-{version}" / "bin" / "uv")):
        if found and os.access(found, os.X_OK) and uv_version(found) == version:
            return found
    return None


def pinned_version() -> str:
    """The version of uv that its pin names."""
    version: str = re.findall(r"^uv==(\S+)", UV_PIN.read_text(), flags=re.MULTILINE)[0]
    return version


def uv_version(uv: str) -> str:
    """What `uv --version` says, without the name."""
    said = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False)
    return (said.stdout.split() or ["", ""])[1]


def fetch_uv(folder: Path) -> str:
    """Let pip put the pinned uv into `folder`, whole or not at all."""
    draft = TOOLS / f"draft-{os.getpid()}"
    options = ["--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
    try:
        run(
            "fetching uv, the installer",
            [*pip(draft), "install", *options, "--target", str(draft / "uv"), "-r", str(UV_PIN)],
        )
        shutil.rmtree(folder, ignore_errors=True)
        (draft / "uv").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return str(folder / "bin" / "uv")


def pip(draft: Path) -> list[str]:
    """The command that runs pip: this Python's own, or the one that the standard library carries."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if not importlib.util.find_spec("ensurepip"):
        release = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ProblemError(f"Python {release} comes without pip; install it (Debian: apt install python{release}-venv)")
    run("making room for pip", [sys.executable, "-m", "venv", str(draft / "venv")])
    return [str(draft / "venv" / "bin" / "python"), "-m", "pip"]


def check_java() -> None:
    """Stop unless there is a Java that Spark and Kafka run on; the rule is the product's own."""
    problem = runpy.run_path(str(JAVA))["find_java_problem"](os.environ)
    if problem is not None:
        raise ProblemError(f"{problem.what}; {problem.next_step}")


def find_existing(folder: Path) -> Path:
    """The folder, or where it will be made."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def check_space() -> None:
    """Stop before a download that cannot fit."""
    for folder in (ROOT, find_existing(Path.home())):
        free = shutil.disk_usage(folder).free
        if free < FREE_BYTES_MIN:
            found, needed = f"{free / 1e9:.1f} GB", f"{FREE_BYTES_MIN / 1e9:.1f} GB"
            raise ProblemError(f"{folder} has {found} free and {needed} are needed; free some, then run again")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the folder's lock, so that two `make` at once do not build over each other."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(doing: str, command: list[str]) -> None:
    """Run one step, showing that it lives; its output is read for a cause, and shown, only if it fails."""
    environment = installer_environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    ) as process:
        done = threading.Event()
        clock = threading.Thread(target=show_clock, args=(doing, done), daemon=True)
        clock.start()
        try:
            output = process.stdout.read() if process.stdout else ""
        finally:
            done.set()
            clock.join()
    if process.returncode:
        raise ProblemError(explain(doing, output))


def installer_environment() -> dict[str, str]:
    """The environment of uv and pip: the system's certificates, and pip's mirror for uv too."""
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    environment.pop("VIRTUAL_ENV", None)
    if mirror := os.environ.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", mirror)
    return environment


def show_clock(doing: str, done: threading.Event) -> None:
    """Say what is being done, and for how long, until `done`."""
    begun = time.monotonic()
    terminal = sys.stderr.isatty()
    step = PROGRESS.start_step()
    while not done.wait(1 if terminal else QUIET_NOTE_SECONDS):
        elapsed = f"setup: {step}{doing} ... {time.monotonic() - begun:.0f} s"
        print(f"\r{elapsed}" if terminal else elapsed, end="" if terminal else "\n", file=sys.stderr, flush=True)
    ended = f"setup: {step}{doing}: {time.monotonic() - begun:.0f} s    "
    print(f"\r{ended}" if terminal else ended.rstrip(), file=sys.stderr)


def explain(doing: str, output: str) -> str:
    """One line from an installer's output: the known cause with its remedy, else its own last lines."""
    for pattern, what, remedy in CAUSES:
        if re.search(pattern, output, flags=re.IGNORECASE):
            return f"{doing}: {what}; {remedy}"
    tail = "\n".join(output.strip().splitlines()[-UNKNOWN_LINES_MAX:])
    return f"{doing} failed, and what it said is not a known cause:\n{tail}"


if __name__ == "__main__":
    sys.exit(main())
