"""lockstep: ordered, stateful streams from Kafka to Delta, exactly once, with a proof.

The public surface. A stream module imports from here and nothing else of lockstep.
"""

from lockstep.declare.decoders.avro import Avro
from lockstep.declare.decoders.contract import Decoder
from lockstep.declare.decoders.plain import Bytes, Function, Json, MessagePack
from lockstep.declare.decoders.protobuf import Protobuf
from lockstep.declare.decoders.registry import RegisteredSchema, Registry, SchemaReference
from lockstep.declare.event_time import EventTime
from lockstep.declare.limits import Limits
from lockstep.declare.place import Kind, Link, Place
from lockstep.declare.record import Record, TimestampType
from lockstep.declare.rows import Rows
from lockstep.declare.rules import Between, NotNull, Rule, Severity
from lockstep.declare.stream import Stream
from lockstep.declare.topics import Adopt, Topics
from lockstep.declare.transform import Opened, Transform
from lockstep.declare.triggers import AvailableNow, Every, FileSize, Trigger
from lockstep.declare.types import DecimalType, IntegerType
from lockstep.errors import LockstepError, RegistryUnreachable, Violation
from lockstep.folds.table import TableFold
from lockstep.integrity.contract import Halt, OnGrowth, SessionStart, Suspend
from lockstep.integrity.evidence import Checksum, Linked, LogOnly, Sequence
from lockstep.integrity.none import NoIntegrity
from lockstep.integrity.once import Once
from lockstep.integrity.ordered import Ordered
from lockstep.integrity.repeats import Repeats
from lockstep.integrity.strict import Strict
from lockstep.integrity.window import FuzzyWindow

__version__ = "0.1.0"

__all__ = [
    "Adopt",
    "AvailableNow",
    "Avro",
    "Between",
    "Bytes",
    "Checksum",
    "DecimalType",
    "Decoder",
    "EventTime",
    "Every",
    "FileSize",
    "Function",
    "FuzzyWindow",
    "Halt",
    "IntegerType",
    "Json",
    "Kind",
    "Limits",
    "Link",
    "Linked",
    "LockstepError",
    "LogOnly",
    "MessagePack",
    "NoIntegrity",
    "NotNull",
    "OnGrowth",
    "Once",
    "Opened",
    "Ordered",
    "Place",
    "Protobuf",
    "Record",
    "RegisteredSchema",
    "Registry",
    "RegistryUnreachable",
    "Repeats",
    "Rows",
    "Rule",
    "SchemaReference",
    "Sequence",
    "SessionStart",
    "Severity",
    "Stream",
    "Strict",
    "Suspend",
    "TableFold",
    "TimestampType",
    "Topics",
    "Transform",
    "Trigger",
    "Violation",
    "__version__",
]
