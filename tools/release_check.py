"""Checks what users would install: builds wheel and sdist, and follows the first steps of a user with them.

.venv/bin/python tools/release_check.py

The wheel is installed in a new environment outside of the checkout, with the versions of requirements-runtime.lock.
Its commands run in an empty home. Packages are downloaded by uv alone, if its cache lacks them; Java's jars are read
from the cache of this user.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PUBLIC = ("", ".dagster", ".decoders", ".derived", ".extensions", ".rules", ".testing", ".windows")
"""Modules of public names, below lockstep."""
IMPORT_ALL = """
import importlib, sys
for module in sys.argv[1:]:
    names = importlib.import_module(module).__all__
    for name in names:
        getattr(importlib.import_module(module), name)
    print(module, len(names), "names")
"""
TUTORIAL = ROOT / "docs" / "add-a-stream.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STREAMS = re.compile(r"^STREAMS\b.*$", re.MULTILINE)
LINES_SHOWN = 40
"""Last lines of a failed command that are shown."""


class CheckFailedError(Exception):
    """A step failed; the text has the command and its output."""


@dataclass(frozen=True)
class User:
    """A user with an empty home and an environment that holds lockstep.

    Attributes:
        environment: Folder of the virtual environment.
        home: The home.
        settings: Settings of the installation, as variables.
    """

    environment: Path
    home: Path
    settings: Mapping[str, str]

    def run(self, *command: str, cwd: Path) -> str:
        """Run a program of the environment.

        Raises:
            CheckFailedError: It ended with another exit code than 0.
        """
        programs = self.environment / "bin"
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        variables = {
            **kept,
            "HOME": str(self.home),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": cache,
            **self.settings,
        }
        return run([str(programs / command[0]), *command[1:]], cwd, variables)


def run(command: Sequence[str], cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output.

    Raises:
        CheckFailedError: It ended with another exit code than 0.
    """
    ended = subprocess.run(
        command, cwd=cwd, env=variables, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if ended.returncode != 0:
        lines = ended.stdout.splitlines()[-LINES_SHOWN:]
        raise CheckFailedError("\n".join([f"{' '.join(command)} ended with {ended.returncode}:", *lines]))
    return ended.stdout


@contextmanager
def show_step(name: str, tool: str = "release-check") -> Iterator[None]:
    """Print the name of a step and its duration."""
    print(f"{tool}: {name}", end="", flush=True)
    start = time.monotonic()
    try:
        yield
    finally:
        print(f": {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    """Run all steps; return the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-release-"))
    try:
        check_release(folder)
    except CheckFailedError as error:
        print(f"release-check: failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("release-check: wheel and sdist are good")
    return 0


def check_release(folder: Path) -> None:
    """1. Build. 2. Compare. 3. Install. 4. Import. 5. Write a project. 6. Run its first stream."""
    with show_step("building wheel and sdist"):  # 1
        wheel = build(ROOT, folder / "dist", "wheel", "sdist")
    with show_step("building the wheel again, from the sdist"):  # 2
        (sdist,) = (folder / "dist").glob("*.tar.gz")
        again = build(unpack(sdist, folder / "sdist"), folder / "again", "wheel")
        require_same_files(wheel, again)
    with show_step("installing the wheel in a new environment"):  # 3
        environment = install(wheel, folder / "environment")
    home = folder / "home"
    home.mkdir()
    user = User(environment, home, {})
    with show_step("lockstep --version, --help, every public name"):  # 4
        check_imports(user, folder)
    with show_step("lockstep init"):  # 5
        project = make_project(user, folder)
    with show_step("a first stream: try, run, query, verify"):  # 6
        run_first_stream(user, project, folder)


def build(source: Path, target: Path, *kinds: str) -> Path:
    """Build distributions of a source tree and return the wheel; the builder is that of this environment."""
    options: list[str] = []
    for kind in kinds:
        options.extend(["-t", kind])
    run([sys.executable, "-m", "hatchling", "build", *options, "-d", str(target)], source)
    (wheel,) = target.glob("*.whl")
    return wheel


def unpack(sdist: Path, target: Path) -> Path:
    """Unpack a source distribution and return its only folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (source,) = target.iterdir()
    return source


def require_same_files(wheel: Path, other: Path) -> None:
    """Compare two wheels.

    Raises:
        CheckFailedError: A file is in one of them only, or differs.
    """
    contents = read_contents(wheel)
    others = read_contents(other)
    names = contents.keys() | others.keys()
    different = sorted(name for name in names if contents.get(name) != others.get(name))
    if different:
        raise CheckFailedError(f"the wheel of the sdist differs from that of the checkout in: {', '.join(different)}")


def read_contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file of a wheel by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def install(wheel: Path, environment: Path, extra: str = "", *others: Path) -> Path:
    """Make an environment that holds wheels and the dependencies of the first with an extra; return its folder."""
    from tools import setup

    uv = setup.find_uv()
    run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], environment.parent)
    options = ["--constraints", str(setup.RUNTIME_LOCK), "--build-constraints", str(setup.BUILDERS)]
    command = [uv, "pip", "install", "--quiet", "--python", str(environment), *options]
    wanted = f"lockstep[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run([*command, wanted, *map(str, others)], environment.parent)
    return environment


def check_imports(user: User, folder: Path) -> None:
    """Check the version, the help, and that every public name can be imported without an extra.

    Raises:
        CheckFailedError: The version is not that of pyproject.toml, or a command fails.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    printed = user.run("lockstep", "--version", cwd=folder).strip()
    if printed != f"lockstep {version}":
        raise CheckFailedError(f"lockstep --version printed {printed!r}, and pyproject.toml has {version}")
    user.run("lockstep", "--help", cwd=folder)
    user.run("python", "-c", IMPORT_ALL, *(f"lockstep{module}" for module in PUBLIC), cwd=folder)


def make_project(user: User, folder: Path) -> Path:
    """Write a project by `lockstep init` and add the stream of the tutorial; return its folder."""
    project = folder / "project"
    user.run("lockstep", "init", str(project), cwd=folder)
    blocks: dict[str, str] = dict(BLOCK.findall(TUTORIAL.read_text()))
    for name in ("assets/plant.py", "send_plant.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(blocks[name])
    definitions = project / "definitions.py"
    text = STREAMS.sub("STREAMS: tuple[AnyStream, ...] = (readings, plant)", definitions.read_text())
    definitions.write_text(text.replace("\nfrom lockstep", "\nfrom assets.plant import plant\nfrom lockstep", 1))
    user.run("python", "-c", "import definitions; definitions.defs.resolve_all_asset_keys()", cwd=project)
    return project


def run_first_stream(user: User, project: Path, folder: Path) -> None:
    """Send messages to a broker of this machine, and run the stream of a project."""
    from lockstep.features.localdev.broker import Broker

    with Broker.start(folder / "kafka") as broker:
        settings = {
            "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "LOCKSTEP_TABLE_ROOT": str(folder / "tables"),
            "LOCKSTEP_LOCAL_ROOT": str(folder / "local"),
            "LOCKSTEP_SPARK__MASTER": "local[1]",
        }
        connected = User(user.environment, user.home, settings)
        connected.run("python", "send_plant.py", cwd=project)
        connected.run("lockstep", "try", "plant", cwd=project)
        connected.run("lockstep", "run", "plant", "--available-now", cwd=project)
        rows = connected.run("lockstep", "query", "SELECT count(*) AS rows FROM plant", cwd=project)
        connected.run("lockstep", "verify", "plant", cwd=project)
    if not re.search(r"[1-9]", rows):
        raise CheckFailedError(f"the first stream has no rows: {rows}")


if __name__ == "__main__":
    sys.exit(main())
