"""A declared dependency is imported by the library, or its reason is named here."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

from tests.support.syntax import list_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOT_IMPORTED = {
    "dagster-postgres": "named by dagster.yaml of an installation of several machines",
    "delta-spark": "goes with the Delta jars in spark/jars.lock",
    "grpcio-status": "imported by pyspark when Great Expectations imports pyspark",
}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_dependencies(root: Path) -> set[str]:
    """Return the distributions that pyproject.toml declares for the library and its extras, without the tools."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared: list[str] = [*project["dependencies"]]
    for extra, more in project["optional-dependencies"].items():
        declared.extend(more if extra != "dev" else [])
    return {normalize(re.split(r"[\[<>=! ]", each)[0]) for each in declared}


def find_imports(library: Path) -> set[str]:
    """Return the top-level packages that the library imports, including lazy imports."""
    imported: set[str] = set()
    for path in library.rglob("*.py"):
        for node in list_nodes(path):
            if isinstance(node, ast.Import):
                imported.update(alias.name.split(".")[0] for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module.split(".")[0])
    return imported


def find_unused(declared: set[str], imported: set[str], homes: Mapping[str, list[str]]) -> set[str]:
    used: set[str] = set()
    for package in imported:
        used.update(map(normalize, homes.get(package, ())))
    return declared - used


def test_each_dependency_is_imported_or_has_a_reason(root: Path) -> None:
    imported = find_imports(root / "platform" / "lockstep")
    homes = {**packages_distributions(), "lockstep_native": ["lockstep-native"]}  # not installed without Rust
    unused = find_unused(read_dependencies(root), imported, homes)
    assert unused == set(NOT_IMPORTED)


def test_a_dependency_that_nothing_imports_is_found() -> None:
    homes = {"rich": ["rich"], "google": ["protobuf", "googleapis-common-protos"]}
    assert find_unused({"rich", "protobuf", "structlog"}, {"rich", "google", "lockstep"}, homes) == {"structlog"}
