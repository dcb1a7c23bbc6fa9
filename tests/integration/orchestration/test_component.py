"""The component of `dg`: its definitions equal definitions.py, and `dg` loads it without Spark."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import Definitions
from dagster.components.core.component_tree import ComponentTree, ComponentTreeException

import definitions as shipped
from lockstep.errors import DeclarationError, LockstepError
from lockstep.operations.project import create_project
from lockstep.operations.project_streams import NewStreamRefused, write_example
from lockstep.orchestration.stream_component import load_stream, make_definitions

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = """
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{name}"
"""
OWN_WARNINGS = pytest.mark.filterwarnings("ignore")
"""Dagster 1.13 warns about Dagster's ways to load folders."""
TYPE = "lockstep.dg.Stream"
COMPONENT = f"type: {TYPE}\n\nattributes:\n  stream: {{stream}}\n"


def list_names(found: Definitions) -> dict[str, set[str]]:
    repository = found.get_repository_def()
    return {
        "assets": {key.to_user_string() for key in repository.assets_defs_by_key},
        "checks": {str(key) for key in repository.asset_checks_defs_by_key},
        "jobs": {job.name for job in repository.get_all_jobs()},
        "schedules": {each.name for each in repository.schedule_defs},
        "sensors": {each.name for each in repository.sensor_defs},
    }


@pytest.mark.parametrize("hosts", ["[]", '["default"]'])
def test_components_define_what_definitions_py_defines(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DAGSTER__HOSTS", hosts)
    declared = importlib.reload(shipped)
    assert list_names(make_definitions(declared.STREAMS)) == list_names(declared.defs)


@pytest.fixture(scope="module", autouse=True)
def shipped_again() -> Iterator[None]:
    """Restore the definitions without hosts for other tests of this process."""
    yield
    importlib.reload(shipped)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A separate package per test, as this process keeps the modules of other tests."""
    name = f"plants_{abs(hash(request.node.name))}"
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(name=name))
    folder = tmp_path / "src" / name
    (folder / "defs").mkdir(parents=True)
    for package in (folder, folder / "defs"):
        (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.chdir(tmp_path)
    yield folder
    for module in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[module]


def add_component(project: Path, name: str, stream: str = "") -> None:
    folder = project / "defs" / name
    folder.mkdir()
    write_example(folder, f"{project.name}.defs.{name}", TYPE, project / f"test_{name}.py")
    if stream:
        (folder / "defs.yaml").write_text(COMPONENT.format(stream=stream))


def load(project: Path) -> Definitions:
    return ComponentTree.for_project(project.parents[1]).build_defs()


@OWN_WARNINGS
def test_the_streams_of_a_project_share_its_sensors(project: Path) -> None:
    for name in ("north", "south", "east"):
        add_component(project, name)
    found = list_names(load(project))
    assert {"north/table", "south/table", "east/table"} <= found["assets"]
    assert {"north_stream", "south_stream", "east_stream", "north_compaction"} <= found["jobs"]
    assert found["sensors"] == {"stream_topics", "stream_supervisor", "stream_health"}


@OWN_WARNINGS
def test_a_stream_of_two_components_is_refused_by_name(project: Path) -> None:
    stream = f"{project.name}.defs.north.north"
    add_component(project, "north")
    add_component(project, "south", stream)
    with pytest.raises(ComponentTreeException) as refused:
        load(project)
    cause = refused.value.__cause__
    assert isinstance(cause, DeclarationError)
    assert "two components" in str(cause)
    assert stream in str(cause)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_module.readings", "cannot be imported: No module named 'no_module'"),
        ("readings", "cannot be imported"),
        ("assets.order_books.nothing", "has the type NoneType, not Stream"),
        ("assets.order_books.OrderBookTransform", "not Stream"),
        ("assets..order_books", "cannot be imported"),
    ],
)
def test_what_is_no_stream_is_refused_with_its_name(name: str, problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        load_stream(name)
    assert name in str(refused.value)
    assert problem in str(refused.value)


@pytest.mark.parametrize("place", ["assets/north", "assets/group/north"])
def test_no_stream_is_hidden_by_a_new_one(tmp_path: Path, place: str) -> None:
    """Python would import the new package instead of the module; definitions.py and lockstep read assets/ alone."""
    create_project(tmp_path, "127.0.0.1:9092")
    (tmp_path / "assets" / "north.py").write_text("# mine\n")
    folder = tmp_path / place
    folder.mkdir(parents=True)
    with pytest.raises(NewStreamRefused):
        write_example(folder, place.replace("/", "."), TYPE, tmp_path / "tests" / "test_north.py")
    assert not folder.exists()
    assert not (tmp_path / "tests" / "test_north.py").exists()


@pytest.mark.parametrize("name", ["class", "Levels", "list", "a b", "msgspec", "run", "number", "read.ings"])
def test_a_name_that_no_file_can_have_leaves_no_file(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(NewStreamRefused):
        write_example(folder, "assets.new", TYPE, tmp_path / "test_new.py")
    assert list(tmp_path.iterdir()) == []


def test_a_test_of_this_name_is_not_replaced(tmp_path: Path) -> None:
    create_project(tmp_path, "127.0.0.1:9092")
    (tmp_path / "tests" / "test_meters.py").write_text("# mine\n")
    folder = tmp_path / "assets" / "meters"
    folder.mkdir()
    with pytest.raises(LockstepError, match=r"test_meters\.py exists"):
        write_example(folder, "assets.meters", TYPE, tmp_path / "tests" / "test_meters.py")
    assert not folder.exists()


def test_dg_loads_the_component_without_spark_or_kafka() -> None:
    program = "import lockstep.dg, sys; print(lockstep.dg.Stream.__module__, *sys.modules)"
    alias, *loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert alias == "lockstep"
    assert not {"pyspark", "confluent_kafka", "pyarrow", "deltalake"} & set(loaded)
