"""The imports of a stream module: fixed names, and no heavy packages."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from itertools import chain, product
from pathlib import Path
from types import ModuleType

import pytest

SURFACE = {
    "lockstep": [
        "AvailableNow",
        "Checksum",
        "ColumnFold",
        "DecimalType",
        "Earliest",
        "Envelope",
        "EnvelopeFields",
        "EventTime",
        "Every",
        "FileSize",
        "FirstSnapshot",
        "FlatMap",
        "FromTime",
        "FuzzyWindow",
        "GroupOffsets",
        "Halt",
        "HaltScope",
        "InitialState",
        "IntegerType",
        "Json",
        "Kind",
        "Latest",
        "Limits",
        "Link",
        "Linked",
        "LockstepError",
        "LogOnly",
        "Lookup",
        "MapState",
        "NewTopics",
        "NoIntegrity",
        "Objectives",
        "OnGrowth",
        "Once",
        "Ordered",
        "Record",
        "Repeats",
        "Sequence",
        "SessionStart",
        "Stream",
        "Strict",
        "Suspend",
        "TableFields",
        "TableFold",
        "Topics",
        "Transform",
        "Violation",
        "__version__",
    ],
    "lockstep.decoders": [
        "Avro",
        "Bytes",
        "Decoder",
        "Function",
        "MessagePack",
        "Protobuf",
        "RegisteredSchema",
        "RegistryUnreachable",
        "SchemaReference",
        "TimestampType",
    ],
    "lockstep.delivery": [
        "DeadRow",
        "DeliveredRow",
        "Delivery",
        "DeliveryFenced",
        "DeliveryToken",
        "FirstRows",
        "KafkaTopic",
        "NewColumns",
        "PostgresTable",
        "RowFormat",
        "RowIdentity",
        "RowSource",
        "RowUndeliverable",
        "Target",
        "TargetConnection",
        "TargetInterrupted",
        "TargetRefused",
        "UndeliverableRows",
        "UndoneStep",
        "Webhook",
    ],
    "lockstep.derived": [
        "Archive",
        "Codec",
        "Derived",
        "Export",
        "OnRewind",
        "OutputMode",
        "Watermark",
    ],
    "lockstep.rules": [
        "Expectation",
        "InRange",
        "InSet",
        "Matches",
        "NotNull",
        "OnViolation",
        "Predicate",
        "References",
        "Scope",
        "Severity",
        "Unique",
        "list_violated",
    ],
    "lockstep.windows": [
        "CountWindows",
        "SessionWindows",
        "SlidingWindows",
        "TumblingWindows",
        "Window",
        "WindowFold",
    ],
}

NAMES = list(chain.from_iterable(product([module], names) for module, names in SURFACE.items()))
TOP_MAX = 48
"""An everyday stream needs about forty names; the others are in modules by theme."""
ROOT = Path(__file__).parents[3]
PAGES = sorted({*ROOT.glob("docs/*.md"), ROOT / "README.md"} - {ROOT / "docs" / "reference.md"})
HEAVY = ("pyspark", "delta", "dagster", "confluent_kafka", "great_expectations", "deltalake", "pyarrow", "pandas")


@pytest.mark.parametrize("module", SURFACE)
def test_the_public_surface_is_fixed(module: str) -> None:
    """A new name is a promise to users, and a missing name breaks their streams. Change both on purpose."""
    assert sorted(import_module(module).__all__) == sorted(SURFACE[module])


@pytest.mark.parametrize("module", SURFACE)
def test_nothing_else_is_public(module: str) -> None:
    values = vars(import_module(module)).items()
    loose = {name for name, value in values if not isinstance(value, ModuleType) and not name.startswith("_")}
    assert loose == set(SURFACE[module]) - {"__version__"}


def test_the_top_has_the_names_of_an_everyday_stream() -> None:
    assert len(SURFACE["lockstep"]) <= TOP_MAX


def test_each_name_is_in_one_module() -> None:
    names = [name for _, name in NAMES]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_says_what_it_means(module: str, name: str) -> None:
    assert name == "__version__" or getattr(import_module(module), name).__doc__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_import_the_names_of_themes(page: Path) -> None:
    code = "\n".join(re.findall(r"^```python.*?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    imported = re.findall(r"^from (lockstep\.\w+) import (.+)$", code, re.MULTILINE)
    known = set(chain.from_iterable(product([module], names.split(", ")) for module, names in imported))
    called = set(re.findall(r"\b[A-Z]\w+(?=\()", code))
    assert {(module, name) for module, name in NAMES if name in called and module != "lockstep"} <= known


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages that a new interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(HEAVY) & set(said.stdout.split())


def test_importing_the_public_modules_loads_nothing_heavy() -> None:
    assert loaded_by(f"import {', '.join(SURFACE)}") == set()


def test_declaring_a_stream_loads_arrow_alone() -> None:
    """Row types are checked against Arrow when declared; only a run loads Spark, Delta, Kafka and Dagster."""
    assert loaded_by("from tests.unit.declare.panels import panels; panels()") == {"pyarrow"}
