"""What a stream module may import: fixed names, and nothing heavy behind them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import lockstep

SURFACE = [
    "AvailableNow",
    "Avro",
    "Bytes",
    "Checksum",
    "Codec",
    "ColumnFold",
    "DecimalType",
    "Decoder",
    "Derived",
    "EventTime",
    "Earliest",
    "Every",
    "Export",
    "FileSize",
    "Function",
    "FirstSnapshot",
    "FlatMap",
    "FromTime",
    "FuzzyWindow",
    "GroupOffsets",
    "Halt",
    "HaltScope",
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
    "MessagePack",
    "NewTopics",
    "NoIntegrity",
    "Objectives",
    "OnGrowth",
    "Once",
    "InitialState",
    "Ordered",
    "OutputMode",
    "Envelope",
    "Protobuf",
    "Record",
    "RegisteredSchema",
    "Registry",
    "RegistryUnreachable",
    "Repeats",
    "MapState",
    "SchemaReference",
    "Sequence",
    "SessionStart",
    "Stream",
    "Strict",
    "Suspend",
    "TableFields",
    "TableFold",
    "TimestampType",
    "StartingOffsets",
    "Topics",
    "Transform",
    "Trigger",
    "Violation",
    "Watermark",
    "CountWindows",
    "SessionWindows",
    "SlidingWindows",
    "TumblingWindows",
    "Window",
    "WindowFold",
    "Expectation",
    "InRange",
    "InSet",
    "Matches",
    "NotNull",
    "OnViolation",
    "Predicate",
    "References",
    "Rule",
    "Scope",
    "Severity",
    "Unique",
    "__version__",
]

HEAVY = ("pyspark", "delta", "dagster", "confluent_kafka", "great_expectations", "deltalake", "pyarrow", "pandas")


def test_the_public_surface_is_fixed() -> None:
    """A new name is a promise to users; a missing one breaks their streams. Change both on purpose."""
    assert sorted(lockstep.__all__) == sorted(SURFACE)


def test_nothing_else_is_public() -> None:
    loose = {name for name, value in vars(lockstep).items() if not isinstance(value, ModuleType)}
    assert {name for name in loose if not name.startswith("_")} == set(SURFACE) - {"__version__"}


def test_every_public_name_says_what_it_means() -> None:
    silent = [name for name in SURFACE if name != "__version__" and not getattr(lockstep, name).__doc__]
    assert silent == []


def loaded_by(statement: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(HEAVY) & set(said.stdout.split())


def test_importing_lockstep_loads_nothing_heavy() -> None:
    assert loaded_by("import lockstep") == set()


def test_declaring_a_stream_loads_arrow_alone() -> None:
    """Row types are checked against Arrow when declared; Spark, Delta, Kafka and Dagster wait for a run."""
    assert loaded_by("from tests.unit.declare.panels import panels; panels()") == {"pyarrow"}
