"""Setup of a machine: one clear line for each missing part, and no incomplete files after a failure."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# The files of the project that setup reads.
PARTS = ("tools", "requirements.lock", "pyproject.toml", "platform/lockstep/spark/java.py")

DONE_SECONDS_MAX = 300

PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[a-z0-9,-]+\])?==(\S+)", re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that setup reads, in a separate folder without an environment."""
    folder = tmp_path / "project"
    for part in PARTS:
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, target)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine with Python and Java, an empty home folder and no network."""
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "python3").symlink_to(sys.executable)
    a_command(commands / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    path = f"{commands}:/usr/bin:/bin"
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    return {"HOME": str(tmp_path), "PATH": path, "PYTHON": str(commands / "python3"), **nowhere}


def locked(name: str) -> list[tuple[str, str]]:
    """Return the packages of a lock with their versions; a package may have several, by Python release."""
    return PINNED.findall((ROOT / name).read_text())


def a_command(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def set_up(project: Path, environment: dict[str, str], *parts: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "tools/setup.sh", *parts]
    return subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DONE_SECONDS_MAX,
    )


def left_behind(project: Path) -> list[str]:
    """Return the files that a failed setup left, except the folder of its lock."""
    tools = project / ".tools"
    drafts = [path.name for path in tools.iterdir() if path.name != "lock"] if tools.exists() else []
    return drafts + [name for name in (".venv",) if (project / name).exists()]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-runtime.lock", "tools/build-requirements.txt"])
def test_a_lock_pins_every_package_by_hashes_and_names_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert len(entries) == len(locked(name)) > 0
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_the_image_installs_the_tested_versions_without_the_tools_of_development() -> None:
    tested = set(locked("requirements.lock"))
    runtime = set(locked("requirements-runtime.lock"))
    names = {name for name, _ in runtime}
    assert runtime <= tested
    assert {"pyspark", "dagster", "protobuf", "requests", "dagster-postgres"} <= names
    assert {"pytest", "mypy", "ruff", "basedpyright", "matplotlib", "duckdb"} & names == set()
    assert "requirements-runtime.lock" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_a_machine_without_a_fitting_python_is_told_which_one_it_needs(
    project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    commands = tmp_path / "old"
    commands.mkdir()
    (commands / "dirname").symlink_to("/usr/bin/dirname")
    a_command(commands / "python3", 'case "$1" in --version) echo Python 3.9.1;; *) exit 1;; esac')
    said = set_up(project, {**environment, "PATH": str(commands), "PYTHON": "python3"})
    assert said.returncode == 1
    assert said.stderr == (
        "setup: lockstep needs Python 3.11, 3.12 or 3.13 (Python 3.9.1); "
        "install one, or run: make PYTHON=/path/to/python3.12\n"
    )


def test_a_machine_without_java_is_told_what_to_install(project: Path, environment: dict[str, str]) -> None:
    said = set_up(project, {**environment, "JAVA_HOME": "/nowhere"})
    assert said.returncode == 1
    assert said.stderr == (
        "setup: no Java found in JAVA_HOME (/nowhere); install a full Java 17 or 21 "
        "(Debian: apt install openjdk-17-jre-headless) or point JAVA_HOME at one\n"
    )


def test_a_machine_without_network_is_told_so_and_keeps_nothing(project: Path, environment: dict[str, str]) -> None:
    said = set_up(project, environment, "java")
    assert said.returncode == 1
    assert said.stderr.startswith("setup: step 1 of 5: fetching uv"), "uv, three of the environment, and Java"
    assert said.stderr.splitlines()[-1] == (
        "setup: fetching uv, the installer: the package registry could not be reached; "
        "check the network (behind a mirror: set PIP_INDEX_URL), then run the same command again"
    )
    assert left_behind(project) == []


def test_an_environment_without_a_stamp_is_taken_for_half_made(project: Path, environment: dict[str, str]) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert set_up(project, environment).returncode == 1
    assert left_behind(project) == []


def make_stamped(project: Path) -> str:
    """Make an environment whose stamp fits; return the stamp."""
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(sys.executable)
    made_from = (project / "requirements.lock").read_bytes() + (project / "pyproject.toml").read_bytes()
    stamp = f"{project.resolve()} {hashlib.sha256(made_from).hexdigest()}"
    (project / ".venv" / ".made-from").write_text(stamp)
    return stamp


def test_an_environment_and_parts_with_their_stamps_are_left_alone_without_a_word(
    project: Path, environment: dict[str, str]
) -> None:
    stamp = make_stamped(project)
    (project / ".venv" / ".java-made-from").write_text(f"{stamp} {hashlib.sha256().hexdigest()}")
    said = set_up(project, environment)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_checkers_wait_for_the_environment_alone(project: Path, environment: dict[str, str]) -> None:
    make_stamped(project)
    said = set_up(project, {**environment, "JAVA_HOME": "/nowhere"}, "environment")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_java_is_prepared_once_and_a_failure_is_not_the_end(project: Path, environment: dict[str, str]) -> None:
    make_stamped(project)
    said = set_up(project, environment, "java")
    assert said.returncode == 0
    assert "preparing Java" in said.stderr
    assert "done all the same" in said.stderr
    assert set_up(project, environment, "java").stderr == ""


def test_a_part_that_is_not_known_is_refused(project: Path, environment: dict[str, str]) -> None:
    said = set_up(project, environment, "jav")
    assert (said.returncode, said.stderr) == (1, "setup: jav is none of environment, extension, java\n")


def test_a_step_is_shown_with_its_number_of_all() -> None:
    progress = runpy.run_path(str(ROOT / "tools" / "setup.py"))["Progress"]()
    assert progress.start_step() == ""
    progress.steps = 3
    assert [progress.start_step(), progress.start_step(), progress.start_step()] == [
        "step 2 of 3: ",
        "step 3 of 3: ",
        "step 4 of 4: ",
    ]


def test_an_interrupt_in_the_middle_leaves_nothing(project: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as registry:  # takes connections and never answers
        address = f"http://127.0.0.1:{registry.getsockname()[1]}/simple"
        with subprocess.Popen(
            # Background processes ignore interrupts, and a shell cannot trap signals ignored before its start.
            ["/usr/bin/env", "--default-signal=INT", "/bin/sh", "tools/setup.sh"],
            cwd=project,
            env={**environment, "PIP_INDEX_URL": address},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            registry.settimeout(DONE_SECONDS_MAX)
            connection, _ = registry.accept()
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=DONE_SECONDS_MAX)[1]
        connection.close()
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "setup: stopped; nothing half-made is left"
    assert left_behind(project) == []
    assert no_process_left(process.pid)


def no_process_left(group: int) -> bool:
    """Return whether a process group is empty, or becomes empty before the deadline."""
    deadline = time.monotonic() + DONE_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("said", "builds"),
    [
        ("cargo 1.84.1 (66221abde)", False),
        ("cargo 1.85.0", True),
        ("cargo 2.0.0", True),
        ("error: no toolchain", False),
    ],
)
def test_the_extension_is_built_where_rust_is_new_enough(
    said: str, *, builds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_command(tmp_path / "cargo", f"echo '{said}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert runpy.run_path(str(ROOT / "tools" / "setup.py"))["has_rust"]() is builds


def test_setup_ends_well_where_the_extension_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_command(tmp_path / "cargo", "echo 'cargo 1.95.0'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    setup = runpy.run_path(str(ROOT / "tools" / "setup.py"))
    pinned = re.findall(r"^uv==(\S+)", (ROOT / "tools" / "uv-requirements.txt").read_text(), re.MULTILINE)[0]
    a_command(tmp_path / "uv", f'test "$1" = --version && echo "uv {pinned}" && exit; echo "dns error"; exit 1')
    setup["build_extension"]()
    said = capsys.readouterr().err
    assert "building lockstep-native: the package registry could not be reached" in said
    assert "done all the same: lockstep works without its extension" in said
