"""An archive of classes is used by the Java and the jars that it was made for, and may be absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import EnvironmentProblem
from lockstep.settings import SparkSettings
from lockstep.spark.class_archive import (
    find_archive,
    find_spark_archive,
    make_archive,
    make_use_options,
    name_archive,
)
from lockstep.spark.jars import fetch_ivy_jar
from lockstep.spark.java import require_java
from lockstep.spark.session import make_spark_properties

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Return a folder with the one jar of a small program."""
    folder = tmp_path / "jars"
    folder.mkdir()
    shutil.copy(fetch_ivy_jar(), folder / "program.jar")
    return folder


def run(jars: Path, *options: str) -> str:
    """Run the program; return the output of the program and its JVM."""
    command = [str(require_java()), *options, "-cp", f"{jars}/*", "org.apache.ivy.Main", "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def written(options: tuple[str, ...]) -> None:
    """Write the file that a JVM leaves at its end."""
    Path(options[0].removeprefix("-XX:ArchiveClassesAtExit=")).write_bytes(b"classes")


def trainer(jars: Path) -> Callable[[tuple[str, ...]], None]:
    return lambda options: print(run(jars, *options))  # noqa: T201  # shown when the test fails


LOADS = "-Xlog:class+load"
FROM_ARCHIVE = "org.apache.ivy.Main source: shared objects file (top)"


def test_a_jvm_maps_the_classes_of_an_archive_that_was_made_for_it(jars: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    name = name_archive("program", jars, require_java())
    said = run(jars)
    assert make_use_options(find_archive(folder, name)) == ()
    assert FROM_ARCHIVE not in run(jars, LOADS)

    made = make_archive(folder, name, trainer(jars))

    assert (list(folder.iterdir()), find_archive(folder, name)) == ([made], made)
    assert FROM_ARCHIVE in run(jars, LOADS, *make_use_options(made))
    assert run(jars, *make_use_options(made)) == said


def test_a_jvm_goes_on_without_a_word_where_an_archive_does_not_fit(jars: Path, tmp_path: Path) -> None:
    name = name_archive("program", jars, require_java())
    said = run(jars)
    made = make_archive(tmp_path / "archives", name, trainer(jars))
    os.utime(jars / "program.jar", (1, 1))
    assert run(jars, *make_use_options(made)) == said
    assert FROM_ARCHIVE not in run(jars, LOADS, *make_use_options(made))
    assert name_archive("program", jars, require_java()) != name


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_archive_is_not_used_and_is_made_again(tmp_path: Path, damage: str) -> None:
    made = make_archive(tmp_path, "spark-1", written)
    content = made.read_bytes()
    made.write_bytes(content[:-1] if damage == "torn" else content[:-1] + b"X")
    assert find_archive(tmp_path, "spark-1") is None
    assert make_archive(tmp_path, "spark-1", written) == made == find_archive(tmp_path, "spark-1")


def test_the_name_of_an_archive_changes_with_java_and_with_any_jar(tmp_path: Path) -> None:
    home = tmp_path / "java"
    jars = tmp_path / "jars"
    (home / "bin").mkdir(parents=True)
    jars.mkdir()
    names = set[str]()

    def name() -> None:
        names.add(name_archive("spark", jars, home / "bin" / "java"))
        assert name_archive("spark", jars, home / "bin" / "java") in names

    name()
    for version in ("17.0.15", "17.0.16"):
        (home / "release").write_text(version)
        name()
    for content in (b"1", b"12"):
        (jars / "one.jar").write_bytes(content)
        name()
    assert len(names) == 5


def test_an_archive_replaces_those_of_another_java_and_is_made_once(tmp_path: Path) -> None:
    foreign = make_archive(tmp_path, "kafka-1", written)
    make_archive(tmp_path, "spark-1", written)
    made = make_archive(tmp_path, "spark-2", written)
    assert make_archive(tmp_path, "spark-2", lambda _: pytest.fail("it is there")) == made
    assert sorted(tmp_path.iterdir()) == [foreign, made]


def test_a_java_that_writes_no_archive_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no archive of Java classes was made"):
        make_archive(tmp_path, "spark-1", lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_the_driver_of_spark_maps_the_archive_of_its_environment_and_a_user_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "-XX:SharedArchiveFile" not in make_spark_properties(SparkSettings())["spark.driver.extraJavaOptions"]
    java = require_java()
    made = make_archive(tmp_path / "var" / "lockstep", name_archive("spark", fetch_ivy_jar().parent, java), written)
    assert find_spark_archive(java) == made
    told = make_spark_properties(SparkSettings())["spark.driver.extraJavaOptions"]
    assert f'"-XX:SharedArchiveFile={made}"' in told
    own = SparkSettings(options={"spark.driver.extraJavaOptions": "-Dmine"})
    assert make_spark_properties(own)["spark.driver.extraJavaOptions"] == "-Dmine"
