"""lockstep: ordered, stateful streams from Kafka to Delta, exactly once, with a proof.

The public surface. A stream module imports from here and nothing else of lockstep.
"""

from lockstep.declare.decoders.avro import Avro
from lockstep.declare.decoders.base import Decoder, RegisteredSchema, Registry, SchemaReference
from lockstep.declare.decoders.plain import Bytes, Function, Json, MessagePack
from lockstep.declare.decoders.protobuf import Protobuf
from lockstep.declare.derived import Derived, OutputMode, Watermark
from lockstep.declare.lookup import Lookup
from lockstep.declare.options import (
    AvailableNow,
    Codec,
    Earliest,
    EventTime,
    Every,
    Export,
    FileSize,
    FirstSnapshot,
    FromTime,
    GroupOffsets,
    Latest,
    Limits,
    NewTopics,
    Objectives,
    StartingOffsets,
    Topics,
    Trigger,
)
from lockstep.declare.rules import (
    Expectation,
    InRange,
    InSet,
    Matches,
    NotNull,
    OnViolation,
    Predicate,
    References,
    Rule,
    Scope,
    Severity,
    Unique,
)
from lockstep.declare.stream import Stream
from lockstep.declare.transform import InitialState, Transform
from lockstep.errors import LockstepError, RegistryUnreachable, Violation
from lockstep.folds.columns import ColumnFold, TableFields
from lockstep.folds.flat_map import FlatMap
from lockstep.folds.table import TableFold
from lockstep.folds.windows import CountWindows, SessionWindows, SlidingWindows, TumblingWindows, Window, WindowFold
from lockstep.integrity.base import Halt, HaltScope, OnGrowth, SessionStart, Suspend
from lockstep.integrity.best_effort import NoIntegrity
from lockstep.integrity.fuzzy_window import FuzzyWindow
from lockstep.integrity.once import Once
from lockstep.integrity.ordered import Ordered
from lockstep.integrity.strict import Checksum, Linked, LogOnly, Repeats, Sequence, Strict
from lockstep.model.column_types import DecimalType, IntegerType
from lockstep.model.map_state import MapState
from lockstep.model.record import Envelope, Kind, Link, Record, TimestampType

__version__ = "0.1.0"

__all__ = [
    "AvailableNow",
    "Avro",
    "Bytes",
    "Checksum",
    "Codec",
    "ColumnFold",
    "CountWindows",
    "DecimalType",
    "Decoder",
    "Derived",
    "Earliest",
    "Envelope",
    "EventTime",
    "Every",
    "Expectation",
    "Export",
    "FileSize",
    "FirstSnapshot",
    "FlatMap",
    "FromTime",
    "Function",
    "FuzzyWindow",
    "GroupOffsets",
    "Halt",
    "HaltScope",
    "InRange",
    "InSet",
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
    "Matches",
    "MessagePack",
    "NewTopics",
    "NoIntegrity",
    "NotNull",
    "Objectives",
    "OnGrowth",
    "OnViolation",
    "Once",
    "Ordered",
    "OutputMode",
    "Predicate",
    "Protobuf",
    "Record",
    "References",
    "RegisteredSchema",
    "Registry",
    "RegistryUnreachable",
    "Repeats",
    "Rule",
    "SchemaReference",
    "Scope",
    "Sequence",
    "SessionStart",
    "SessionWindows",
    "Severity",
    "SlidingWindows",
    "StartingOffsets",
    "Stream",
    "Strict",
    "Suspend",
    "TableFields",
    "TableFold",
    "TimestampType",
    "Topics",
    "Transform",
    "Trigger",
    "TumblingWindows",
    "Unique",
    "Violation",
    "Watermark",
    "Window",
    "WindowFold",
    "__version__",
]
