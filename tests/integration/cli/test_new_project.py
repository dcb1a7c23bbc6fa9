"""`lockstep init` and `--update`: Dagster loads the project of an installed package, also with an added stream."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.errors import LockstepError
from lockstep.operations.project import RenewedProject, create_project, name_location, renew_project

ROOT = Path(__file__).parents[3]
STREAM = """
from tests.support.adding_stream import adding

plants = adding("plants")
"""
LOAD = """
from definitions import defs

print(*sorted(key.to_user_string() for key in defs.resolve_all_asset_keys()))
"""


def test_an_installed_package_writes_a_project_that_loads_with_a_stream(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True, timeout=900
    )
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "site"
    project = tmp_path / "project"
    zipfile.ZipFile(wheel).extractall(installed)
    environment = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}

    def call(*arguments: str, cwd: Path) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environment, check=True, timeout=900, stdout=subprocess.PIPE, text=True
        ).stdout

    call("-m", "lockstep.cli", "init", str(project), "--brokers", "kafka:9092", cwd=tmp_path)
    assert "adding/table" not in call("-c", LOAD, cwd=project)
    (project / "assets" / "plants.py").write_text(STREAM)
    definitions = (project / "definitions.py").read_text()
    named = definitions.replace("= (readings,)", "= (readings, plants)", 1)
    named = named.replace("\n\n", "\n\nfrom assets.plants import plants\n", 1)
    (project / "definitions.py").write_text(named)
    assert {"adding/table", "adding/compaction"} <= set(call("-c", LOAD, cwd=project).split())
    assert '"kafka:9092"' in (project / "lockstep.toml").read_text()


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "workspace.yaml"
    mine.write_text("mine")
    with pytest.raises(LockstepError, match=r"workspace\.yaml exists, and would be replaced"):
        create_project(tmp_path, "kafka:9092")
    assert [path.name for path in tmp_path.iterdir()] == ["workspace.yaml"]
    assert mine.read_text() == "mine"


def test_an_update_brings_jobs_and_sensors_to_the_release_and_loses_nothing(tmp_path: Path) -> None:
    create_project(tmp_path, "kafka:9092")
    assert renew_project(tmp_path) == RenewedProject(str(tmp_path), (), (), (), ())
    (tmp_path / "jobs" / "quality.py").write_text("# of an older release\n")
    (tmp_path / "sensors" / "health.py").unlink()
    (tmp_path / "definitions.py").write_text("# mine\n")
    updated = renew_project(tmp_path)
    assert updated == RenewedProject(
        str(tmp_path), ("sensors/health.py",), ("jobs/quality.py",), ("jobs/quality.py.before",), ("definitions.py",)
    )
    assert (tmp_path / "jobs" / "quality.py.before").read_text() == "# of an older release\n"
    assert (tmp_path / "jobs" / "quality.py").read_text() == (ROOT / "jobs" / "quality.py").read_text()
    assert (tmp_path / "definitions.py").read_text() == "# mine\n"
    assert "kafka:9092" in (tmp_path / "lockstep.toml").read_text()


def test_what_each_update_replaced_stays(tmp_path: Path) -> None:
    create_project(tmp_path, "kafka:9092")
    mine = ["# mine, of the first release\n", "# mine, of the second\n", "# mine, of the third\n"]
    for text in mine:
        (tmp_path / "jobs" / "quality.py").write_text(text)
        said = CliRunner().invoke(app, ["init", str(tmp_path), "--update"])
        (saved,) = re.findall(r"its content before is in (\S+)", said.stdout)
        assert (tmp_path / saved).read_text() == text
    assert [(tmp_path / "jobs" / f"quality.py.before{number}").read_text() for number in ("", 2, 3)] == mine


def test_an_update_of_a_folder_without_a_project_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["init", str(tmp_path), "--update"])
    assert (said.exit_code, "has no definitions.py: it is not a project" in said.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_brokers_that_no_settings_take_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["init", str(tmp_path / "new"), "--brokers", 'a"b'])
    assert (said.exit_code, "--brokers:" in said.stderr) == (1, True)
    assert not (tmp_path / "new").exists()


def test_a_new_repository_passes_its_own_checks_with_a_stream_that_dg_added(tmp_path: Path) -> None:
    """With an empty home: strict types, tests, style and both loaders of Dagster; git reports the new stream."""
    project = tmp_path / "my-meters"
    home = tmp_path / "home"
    home.mkdir()
    create_project(project, "127.0.0.1:9092")
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "DAGSTER_HOME": str(project / "dagster_home"),
        "PYTHONPATH": str(ROOT / "platform"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }

    def call(*command: str) -> str:
        said = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == 0, f"{command}: {said.stdout}{said.stderr}"
        return said.stdout

    call("git", "init", "--quiet")
    call("git", "add", "--all")
    call("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--message", "New repository")
    call("dg", "scaffold", "defs", "lockstep.Stream", "plants")
    assert "lockstep.dg.Stream" in (project / "assets" / "plants" / "defs.yaml").read_text()
    assert "STREAMS: tuple[AnyStream, ...] = (readings, plants)" in (project / "definitions.py").read_text()
    assert "no issues found" in call("mypy", "--strict")
    assert "6 passed" in call("pytest", "-q")
    call("ruff", "check")
    call("ruff", "format", "--check")
    call("dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert "All definitions loaded successfully" in call("dg", "check", "defs")
    assert call("git", "status", "--porcelain").split() == [
        *("M", "definitions.py", "??", "assets/plants/", "??", "tests/test_plants.py")
    ]
    assert 'code_location_name = "my_meters"' in (project / "pyproject.toml").read_text()
    assert "location_name: my_meters" in (project / "workspace.yaml").read_text()


def test_files_of_a_repository_that_was_there_before_stay(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("# mine\n")
    said = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert (said.exit_code, "pyproject.toml is yours and stays" in said.stdout) == (0, True)
    assert (tmp_path / "pyproject.toml").read_text() == "# mine\n"
    assert (tmp_path / ".gitignore").exists()


@pytest.mark.parametrize(
    ("folder", "name"),
    [("plants", "plants"), ("My Plants-2", "my_plants_2"), ("7-eleven", "streams_7_eleven"), ("Größe", "gr_e")],
)
def test_a_code_location_has_the_name_of_its_folder(folder: str, name: str) -> None:
    assert name_location(Path("/repositories") / folder) == name
    assert name_location(Path("/")) == "streams"
