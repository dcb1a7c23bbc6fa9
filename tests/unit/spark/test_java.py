"""Java is found as Spark finds it, and a problem with it is reported in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.errors import EnvironmentProblem
from lockstep.spark.java import INSTALL, JavaProblem, find_java_problem, read_java_release, require_java


@pytest.mark.parametrize(
    ("banner", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("Error: could not find java.dll", None),
    ],
)
def test_the_release_is_read_from_the_banner(banner: str, release: int | None) -> None:
    assert read_java_release(banner) == release


def test_no_java_on_path_is_said(tmp_path: Path) -> None:
    assert find_java_problem({"PATH": str(tmp_path)}) == JavaProblem("no Java found in PATH", INSTALL)


def test_an_empty_java_home_is_named(tmp_path: Path) -> None:
    expected = JavaProblem(f"no Java found in JAVA_HOME ({tmp_path})", INSTALL)
    assert find_java_problem({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"}) == expected


def test_an_old_java_is_named_with_its_release(tmp_path: Path) -> None:
    java = a_java_that_says(tmp_path, 'java version "1.8.0_402"')
    expected = JavaProblem(f"{java} is Java 8, not 17 or 21", INSTALL)
    assert find_java_problem({"PATH": str(tmp_path)}) == expected


def test_a_cut_down_java_is_refused_before_spark_fails_on_it(tmp_path: Path) -> None:
    java = a_java_that_says(tmp_path, 'openjdk version "17.0.15"', unless="--add-modules")
    expected = JavaProblem(f"{java} is a cut-down Java without the module jdk.incubator.vector", INSTALL)
    assert find_java_problem({"PATH": str(tmp_path)}) == expected


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    a_java_that_says(tmp_path / "bin", 'openjdk version "21.0.1"')
    assert find_java_problem({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"}) is None


def test_a_missing_java_raises_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem) as raised:
        require_java()
    assert raised.value.next_step == INSTALL


@pytest.mark.parametrize("locale", ["C", "xx_XX.UTF-8"], ids=["ASCII", "not installed"])
def test_java_names_files_as_python_does_under_any_locale(locale: str) -> None:
    """Spark and Kafka did not start in a folder `schön`, and checks did not find the tables below it."""
    environment = os.environ | {"LC_ALL": locale, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
    command = [sys.executable, "-c", SHOW_PROPERTIES]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert re.findall(r"sun\.jnu\.encoding = (.+)", said.stderr) == ["UTF-8"]


SHOW_PROPERTIES = """
import os
from lockstep.spark.java import require_java

java = require_java()
os.execl(java, java, "-XshowSettings:properties", "-version")
"""


def a_java_that_says(folder: Path, banner: str, unless: str = "no such option") -> Path:
    """Return a command `java` that prints a banner as Java does, on stderr, unless an option is given."""
    java = folder / "java"
    refusal = f"case \"$*\" in *'{unless}'*) exit 1;; esac"
    java.write_text(f"#!/bin/sh\n{refusal}\necho '{banner}' >&2\n")
    java.chmod(0o755)
    return java
