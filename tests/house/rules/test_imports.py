"""Imports go one way, as docs/architecture.md draws them; a wrong import is named with its file and line."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.syntax import list_nodes, parse_file

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "platform" / "lockstep"

# Packages without Spark, Dagster and Kafka: they run anywhere and import fast.
PURE = ("declare", "integrity", "folds")
FOREIGN_TO_PURE = ("pyspark", "delta", "dagster", "confluent_kafka", "deltalake", "great_expectations")

# From the bottom up. A package imports its own modules and the layers below, at load and lazily.
LAYERS = (
    ("errors", "addresses", "boot", "child_process", "cron", "native", "progress", "time_limit"),
    ("store_clients", "http_request", "foreign_errors"),
    ("settings", "storage", "html_page"),
    ("feature",),
    ("model",),
    ("user_code",),
    ("integrity", "kafka"),
    ("state", "table", "spark"),
    ("control",),
    ("declare",),
    ("folds",),
    ("engine.protocol",),
    ("engine.executor",),
    ("engine.driver",),
    ("verify",),
    ("operations",),
    ("orchestration",),
    ("cli",),
    ("decoders",),
    ("testing",),
    ("features",),
    ("code_location", "dagster", "delivery", "derived", "dg", "extensions", "rules", "windows"),
)
RANKS = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

# The proof shares nothing with the proven code: neither reader nor gates nor fold. It may import only the user's
# declarations, the readers of stored files, and the reader of the cluster's secrets.
PROVER = "verify"
FOREIGN_TO_THE_PROVER = (
    *("lockstep.engine", "lockstep.integrity", "lockstep.folds", "lockstep.spark", "lockstep.features"),
    *("lockstep.orchestration", "lockstep.testing", "pyspark", "dagster"),
    *(f"lockstep.kafka.{name}" for name in ("admin", "audit", "client", "consumer_group", "reader")),
    *("lockstep.model.compatibility", "lockstep.model.columns", "lockstep.storage"),
    *(f"lockstep.state.{name}" for name in ("local_store", "local_store_pool", "restore", "store")),
    *(f"lockstep.table.{name}" for name in ("parquet", "quarantine", "row_encoder")),
    *(
        f"lockstep.declare.rules.{name}"
        for name in ("InlineRule", "check_first_rows", "check_rows", "find_inline_rules")
    ),
)

# Executors load tasks without these modules.
DRIVER_ONLY = (
    "lockstep.features",
    "lockstep.engine.driver",
    "lockstep.operations",
    "lockstep.kafka.admin",
    "lockstep.kafka.audit",
    "pyspark.sql",
    "pandas",
)

# A module with one importer in its package belongs in its importer, unless it has a reason here. Modules of a feature
# are its parts (plan, commit, asset, commands), so they need no reason.
ONE_IMPORTER = {
    "cli.progress": "bars and lines, apart from the commands",
    "engine.executor.attempt": "what a task tries again with less, apart from how it works",
    "declare.decoders.protobuf_checks": "checks that Protobuf's library lacks, apart from frames and schemas",
    "declare.decoders.avro_reader": "the binary encoding, apart from message types and registry",
    "engine.driver.batch_checks": "pure checks over a whole batch",
    "engine.executor.collector": "Python's garbage collector, apart from the steps of a task",
    "engine.executor.worker_memory": "the limit of the memory of a worker, apart from the steps of a task",
    "engine.executor.columnar": "chunks of a ready fold at once, apart from the hot loop",
    "engine.executor.columnar_native": "the plain chunk by the extension",
    "engine.executor.update_run": "the plain updates of a range by the extension",
    "engine.executor.update_shape": "messages as the extension reads them",
    "engine.executor.columnar_numpy": "the plain chunk by NumPy and Arrow",
    "engine.executor.row_copies": "copies of rows that share objects, apart from the fold",
    "testing.exact": "exact comparison of results, apart from what they hold",
    "verify.stored_form": "the stored form of a state by the prover's own reading",
    "engine.executor.deferred": "buffered messages and timers, apart from the hot loop",
    "engine.driver.retries": "what follows a failed job, apart from the loop",
    "engine.driver.live_reports": "the newest batches of a run and their publication, apart from the loop",
    "engine.driver.stop_offsets": "the end of a bounded run, apart from the loop",
    "engine.driver.topic_changes": "topics that come and go, apart from the loop",
    "state.filling_store": "the entries of a part of a local store and of segments, apart from the choice between them",
    "integrity.multipart": "a gate around the gates of all classes",
    "integrity.opening": "a gate around the gates of all classes",
    "kafka.leader_epochs": "one question to the brokers, which needs a consumer of its own",
    "operations.doctor.definitions": "diagnoses of Dagster's code locations",
    "operations.doctor.kafka": "diagnoses of a cluster",
    "operations.doctor.machine": "diagnoses of a machine",
    "operations.doctor.object_store": "diagnoses of an object store",
    "operations.inspect.spellings": "keys of a fold by value, apart from the steps of a trial",
    "orchestration.pruning": "pure limits and deletions; Dagster evaluates the annotations of the job's module",
    "orchestration.restart_policy": "pure decision of the topics sensor",
    "state.restore": "restoring a local store, apart from its use",
    "storage.object_store": "an extra, which only tables in an object store need",
    "engine.driver.halted_topics": "topics that a violation has halted, apart from the loop",
    "operations.lost_batch": "what a lost entry of the table leaves in the side tables, apart from the other checks",
    "user_code.version_control": "questions to git, apart from the copies",
    "table.descriptions": "pure rules about a commit of others, apart from the log in which it is found",
    "table.decimal_column": "the bytes of decimals, apart from the other columns of rows",
    "testing.batches": "batches with crashes, apart from the run as a whole",
    "verify.read_stored": "all reading of logs and files, apart from the proofs of what was read",
    "verify.side_files": "side files against the commits that name them, apart from the reading of tables",
    "verify.row_replay": "rows against states, which needs no Kafka, apart from the fold of the log",
    "verify.table_difference": "the rows of a replaced table: the second reading of the engine's",
    "verify.bounds": "what the log says of one file's columns, apart from the rows of partitions",
    "verify.followers": "the claims of consumers, apart from the proof of the stream",
    "verify.partition": "the proof of one partition, apart from the walk over all",
    "verify.topic_ends": "the second reading of a rule of the writer, apart from the walk over all",
}

# In the library, only these may import dagster; other packages run on executors, which lack it.
KNOWS_DAGSTER = ("orchestration", "features")


@dataclass(frozen=True)
class Import:
    """One imported module with its place, and whether the import runs when the file is loaded."""

    path: Path
    line: int
    module: str
    at_load: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}"

    def is_of(self, package: str) -> bool:
        return self.module == package or self.module.startswith(f"{package}.")


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Return all imports of a file, except those for type checkers only."""
    tree = parse_file(path)
    typing_only = {id(node) for block in type_checking_blocks(tree) for node in ast.walk(block)}
    at_load = set(map(id, nodes_run_at_load(tree)))
    return tuple(
        Import(path, node.lineno, module, id(node) in at_load)
        for node in ast.walk(tree)
        if id(node) not in typing_only and isinstance(node, ast.Import | ast.ImportFrom)
        for module in modules_named(node)
    )


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


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_neither_spark_nor_dagster_nor_kafka(package: str) -> None:
    wrong = [
        str(each)
        for path in sources(package)
        for each in imports_of(path)
        if any(each.is_of(name) for name in FOREIGN_TO_PURE)
    ]
    assert wrong == []


def test_the_proof_shares_nothing_with_what_it_proves() -> None:
    """Its imports of lockstep are the declaration, the readers of logs and state files, settings, and itself."""
    wrong = [
        str(each)
        for path in sources(PROVER)
        for each in imports_of(path)
        if any(each.is_of(name) for name in FOREIGN_TO_THE_PROVER)
    ]
    assert sources(PROVER) != []
    assert wrong == []


def package_of(module: str) -> str:
    """Return the package of a library's module, as the layers name it; empty for the root."""
    parts = module.removeprefix("lockstep").lstrip(".").split(".")
    return ".".join(parts[:2]) if parts[0] == "engine" else parts[0]


def module_of(path: Path) -> str:
    return ".".join(("lockstep", *path.relative_to(LIBRARY).with_suffix("").parts)).removesuffix(".__init__")


def test_every_package_has_its_layer() -> None:
    found = {package_of(module_of(path)) for path in LIBRARY.rglob("*.py")}
    assert found - {"", "engine"} == set(RANKS)


def test_imports_go_down_the_layers_only() -> None:
    wrong = [
        str(each)
        for path in sorted(LIBRARY.rglob("*.py"))
        for each in imports_of(path)
        if each.is_of("lockstep") and path != LIBRARY / "__init__.py"
        if (package := package_of(each.module)) != (own := package_of(module_of(path)))
        if package in RANKS and RANKS[package] >= RANKS[own]
    ]
    assert wrong == []


def test_a_module_with_one_importer_in_its_package_has_a_reason() -> None:
    modules = {module_of(path) for path in LIBRARY.rglob("*.py") if path.name != "__init__.py"}
    importers: dict[str, set[str]] = {module: set() for module in modules}
    for path in LIBRARY.rglob("*.py"):
        for node in list_nodes(path):
            if isinstance(node, ast.ImportFrom):
                for module in {str(node.module), *modules_named(node)} & modules - {module_of(path)}:
                    importers[module].add(module_of(path))
    single = {
        module.removeprefix("lockstep.")
        for module, (*users,) in importers.items()
        if len(users) == 1 and users[0].rpartition(".")[0] == module.rpartition(".")[0]
        if not module.startswith("lockstep.features.")
    }
    assert single == set(ONE_IMPORTER)


def test_a_task_is_loaded_without_what_only_the_driver_needs() -> None:
    program = "import lockstep.engine.executor.task, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "lockstep.engine.executor.fold" in loaded
    assert [name for name in loaded if any(name == it or name.startswith(f"{it}.") for it in DRIVER_ONLY)] == []


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
    """Its import costs 2.5 s and 300 MB, which no code location must pay at load."""
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
