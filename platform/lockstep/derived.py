"""Datasets derived from the table of a stream: further tables by Spark SQL, and exports as plain Parquet."""

from lockstep.declare.derived import Derived, OutputMode, Watermark
from lockstep.declare.archive import Archive
from lockstep.declare.options import Codec, Export

__all__ = [
    "Archive",
    "Codec",
    "Derived",
    "Export",
    "OutputMode",
    "Watermark",
]
