"""lockstep: ordered, stateful streams from Kafka to Delta, exactly once, with a proof.

The names that most streams need. Others are in a module for each theme: `lockstep.decoders`, `lockstep.rules`,
`lockstep.windows` and `lockstep.derived`; tests of a stream import `lockstep.testing`, Dagster's wiring
`lockstep.dagster`. Nothing else is public.
"""

from lockstep.declare.decoders.plain import Json
from lockstep.declare.envelope_fields import EnvelopeFields
from lockstep.declare.lookup import Lookup
from lockstep.declare.options import (
    AvailableNow,
    Earliest,
    EventTime,
    Every,
    FileSize,
    FirstSnapshot,
    FromTime,
    GroupOffsets,
    Latest,
    Limits,
    NewTopics,
    Objectives,
    Topics,
)
from lockstep.declare.stream import Stream
from lockstep.declare.transform import InitialState, Transform
from lockstep.errors import LockstepError, Violation
from lockstep.folds.columns import ColumnFold, TableFields
from lockstep.folds.flat_map import FlatMap
from lockstep.folds.table import TableFold
from lockstep.integrity.base import Halt, HaltScope, OnGrowth, SessionStart, Suspend
from lockstep.integrity.best_effort import NoIntegrity
from lockstep.integrity.fuzzy_window import FuzzyWindow
from lockstep.integrity.once import Once
from lockstep.integrity.ordered import Ordered
from lockstep.integrity.strict import Checksum, Linked, LogOnly, Repeats, Sequence, Strict
from lockstep.model.column_types import DecimalType, IntegerType
from lockstep.model.map_state import MapState
from lockstep.model.record import Envelope, Kind, Link, Record

__version__ = "0.1.0"

__all__ = [
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
]
