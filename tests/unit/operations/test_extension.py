"""An extension of another version is not used, and the doctor reports it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lockstep.native import INTERFACE
from lockstep.operations.doctor.diagnosis import Level

ROOT = Path(__file__).parents[3]
PROGRAM = """
from lockstep.operations.doctor.machine import check_extension
from lockstep.native import extension
(found,) = check_extension()
print(extension is not None, found.level.name, found.found, sep="|")
"""


@pytest.mark.parametrize(
    ("module", "is_used", "level", "text"),
    [
        (
            "raise ImportError",
            "False",
            Level.OK,
            "not installed: the same results, but a ColumnFold takes 1.6 times the CPU time",
        ),
        (
            "INTERFACE = 0",
            "False",
            Level.WARNING,
            f"has interface 0, and this lockstep calls {INTERFACE}: it is not used",
        ),
        (f"INTERFACE = {INTERFACE}", "True", Level.OK, "installed and used"),
    ],
)
def test_only_the_extension_of_this_version_is_used(
    module: str, is_used: str, level: Level, text: str, tmp_path: Path
) -> None:
    (tmp_path / "lockstep_native.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.split("|")
    assert said[:2] == [is_used, level.name]
    assert text in said[2]


@pytest.mark.parametrize(("module", "warnings"), [("raise ImportError", 1), (f"INTERFACE = {INTERFACE}", 0)])
def test_a_run_warns_once_of_what_it_costs_without_the_extension(module: str, warnings: int, tmp_path: Path) -> None:
    (tmp_path / "lockstep_native.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = "from lockstep.engine.driver.run import report_slow_path; report_slow_path()"
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stderr.count("a ColumnFold takes 1.6 times the CPU time") == warnings
    assert said.stderr.count("make wheels") == warnings


def test_the_extra_names_the_version_of_the_extension() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["native"]
    version = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())["project"]["version"]
    assert extra == [f"lockstep-native=={version}"]
    assert tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())["package"]["version"] == version
