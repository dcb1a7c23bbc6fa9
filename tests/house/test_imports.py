"""Imports go one way, as docs/architecture.md draws them; a wrong one is named with its file and line."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "platform" / "lockstep"

# Packages that know nothing of Spark, Dagster or Kafka: they run anywhere, and import in a blink.
PURE = ("declare", "integrity", "folds")
FOREIGN_TO_PURE = ("pyspark", "delta", "dagster", "confluent_kafka", "deltalake", "great_expectations")

# What a package may not import, above what is said of the pure ones.
FORBIDDEN = {
    **dict.fromkeys(PURE, FOREIGN_TO_PURE),
    "kafka": ("lockstep.engine",),
    "state": ("lockstep.engine",),
    "table": ("lockstep.engine",),
}

# Packages that sit on top; nothing below may know them. Order is from the bottom up.
LAYERS = (
    *("declare", "integrity", "folds", "kafka", "state", "table", "spark", "engine", "compaction", "quality"),
    *("operations", "orchestration"),
)
ON_TOP = ("compaction", "quality", "operations", "orchestration")

# The proof shares nothing with what it proves: neither reader nor gates nor fold. Of the rest it may know what a
# user declared, the readers of stored files, and where the cluster's secrets are.
PROVER = "operations/verify"
FOREIGN_TO_THE_PROVER = (
    *("lockstep.engine", "lockstep.integrity", "lockstep.folds", "lockstep.spark", "lockstep.compaction"),
    *("lockstep.quality", "lockstep.orchestration", "lockstep.testing", "pyspark", "dagster"),
    *(f"lockstep.kafka.{name}" for name in ("audit", "client", "discovery", "group", "holes", "reader")),
    *(f"lockstep.state.{name}" for name in ("difference", "healing", "hot", "recover", "store")),
    *(f"lockstep.table.{name}" for name in ("columns", "ledger", "quarantine", "rows", "statistics", "values")),
)

# Only these may import dagster, in the library; the rest reaches executors, which have none.
KNOWS_DAGSTER = ("orchestration",)


@dataclass(frozen=True)
class Import:
    """One imported module, where it is written and whether it runs when the file is loaded."""

    path: Path
    line: int
    module: str
    at_load: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"

    def is_of(self, package: str) -> bool:
        return self.module == package or self.module.startswith(f"{package}.")


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file but those for the type checker alone, wherever it is written."""
    tree = ast.parse(path.read_text(), filename=str(path))
    typing_only = {id(node) for block in type_checking_blocks(tree) for node in ast.walk(block)}
    at_load = set(map(id, nodes_run_at_load(tree)))
    for node in ast.walk(tree):
        if id(node) not in typing_only and isinstance(node, ast.Import | ast.ImportFrom):
            for module in modules_named(node):
                yield Import(path, node.lineno, module, id(node) in at_load)


def modules_named(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def type_checking_blocks(tree: ast.Module) -> list[ast.stmt]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.If) and names_type_checking(node.test)]
    return [statement for block in found for statement in block.body]


def names_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def nodes_run_at_load(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from nodes_run_at_load(child)


def sources(package: str) -> list[Path]:
    return sorted((LIBRARY / package).rglob("*.py"))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_imports_nothing_that_is_forbidden_to_it(package: str) -> None:
    wrong = [
        str(each)
        for path in sources(package)
        for each in imports_of(path)
        if any(each.is_of(name) for name in FORBIDDEN[package])
    ]
    assert wrong == []


def test_the_proof_shares_nothing_with_what_it_proves() -> None:
    """What it imports of lockstep: the declaration, the readers of logs and state files, settings, and its own."""
    wrong = [
        str(each)
        for path in sources(PROVER)
        for each in imports_of(path)
        if any(each.is_of(name) for name in FOREIGN_TO_THE_PROVER)
    ]
    assert sources(PROVER) != []
    assert wrong == []


@pytest.mark.parametrize("package", LAYERS)
def test_no_package_imports_one_that_sits_above_it(package: str) -> None:
    above = [name for name in ON_TOP if name in LAYERS[LAYERS.index(package) + 1 :]]
    wrong = [
        str(each)
        for path in sources(package)
        for each in imports_of(path)
        if any(each.is_of(f"lockstep.{name}") for name in above)
    ]
    assert wrong == []


def test_only_orchestration_knows_dagster() -> None:
    wrong = [
        str(each)
        for path in sorted(LIBRARY.rglob("*.py"))
        if path.relative_to(LIBRARY).parts[0] not in KNOWS_DAGSTER
        for each in imports_of(path)
        if each.is_of("dagster")
    ]
    assert wrong == []


def test_the_library_never_imports_the_repository_around_it() -> None:
    around = ("assets", "jobs", "sensors", "definitions", "tests", "benchmarks")
    wrong = [
        str(each)
        for path in sorted(LIBRARY.rglob("*.py"))
        for each in imports_of(path)
        if any(each.is_of(name) for name in around)
    ]
    assert wrong == []


def test_great_expectations_is_imported_only_where_it_is_used() -> None:
    """Its import costs 2.5 s and 300 MB, which no code location should pay at load."""
    wrong = [
        str(each)
        for path in sorted(LIBRARY.rglob("*.py"))
        for each in imports_of(path)
        if each.is_of("great_expectations") and each.at_load
    ]
    assert wrong == []


def test_the_walk_sees_lazy_imports_and_skips_those_for_types(tmp_path: Path) -> None:
    source = tmp_path / "seen.py"
    source.write_text(
        "import dagster\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import deltalake\n"
        "def late():\n    from pyspark.sql import SparkSession\n"
    )
    found = [(each.module, each.at_load) for each in imports_of(source)]
    assert found == [
        ("dagster", True),
        ("typing.TYPE_CHECKING", True),
        ("pyspark.sql.SparkSession", False),
    ]
