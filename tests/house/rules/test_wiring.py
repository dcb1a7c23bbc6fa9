"""A user's definitions.py, jobs and sensors import only the public API, without internals of Dagster."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockstep.dagster
from lockstep.operations.project import create_project
from tests.house.rules.test_imports import LIBRARY, ROOT, imports_of, module_of, modules_named
from tests.support.syntax import list_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

WIRING = (ROOT / "definitions.py", *(ROOT / "jobs").glob("*.py"), *(ROOT / "sensors").glob("*.py"))
PUBLIC = ("lockstep", "lockstep.dagster", "lockstep.derived")
LOADED = "import definitions, sys; print(*(name for name in sys.modules if name.startswith('lockstep')))"


def list_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from lockstep."""
    for node in list_nodes(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for imported in modules_named(node):
                if imported.split(".")[0] == "lockstep":
                    module, _, name = imported.rpartition(".")
                    yield module, name


@pytest.mark.parametrize("path", WIRING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_wiring_imports_the_public_api_alone(path: Path) -> None:
    assert list_private_names(path) == []


def list_private_names(path: Path) -> list[str]:
    return [f"{module}.{name}" for module, name in list_names(path) if not is_public(module, name)]


def is_public(module: str, name: str) -> bool:
    return module in PUBLIC and name in importlib.import_module(module).__all__


def test_a_new_project_imports_the_public_api_alone(tmp_path: Path) -> None:
    create_project(tmp_path, "127.0.0.1:9092")
    files = [tmp_path / "definitions.py", *(tmp_path / "jobs").iterdir(), *(tmp_path / "sensors").iterdir()]
    assert len(files) == len(WIRING)
    assert list(map(list_private_names, files)) == [[]] * len(files)


def test_the_wiring_needs_each_public_name() -> None:
    """A name that no wiring imports would be an unneeded promise."""
    used = set(chain.from_iterable(map(list_names, WIRING)))
    assert used >= {("lockstep.dagster", name) for name in lockstep.dagster.__all__}


def test_no_internals_of_dagster_are_loaded_for_the_wiring() -> None:
    """Dagster may change its internals in any release; modules that need them are loaded only by their callers."""
    loaded = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    paths = [path for path in LIBRARY.rglob("*.py") if module_of(path) in modules]
    assert LIBRARY / "orchestration" / "table_asset.py" in paths
    imports = chain.from_iterable(map(imports_of, paths))
    assert [str(each) for each in imports if each.at_load and each.module.startswith("dagster._")] == []
