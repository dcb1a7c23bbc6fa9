"""Datasets next to the table of a stream: derived tables by Spark SQL, exports as plain Parquet, the archive."""

from lockstep.declare.archive import Archive
from lockstep.declare.derived import Derived, OutputMode, Watermark
from lockstep.declare.options import Codec, Export, OnRewind

__all__ = [
    "Archive",
    "Codec",
    "Derived",
    "Export",
    "OnRewind",
    "OutputMode",
    "Watermark",
]
