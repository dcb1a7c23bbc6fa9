"""Reads durable state files by the description of their format alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import zstandard

if TYPE_CHECKING:
    from pathlib import Path


def newest_is_base(files: set[Path]) -> bool:
    """Whether the newest of some files starts with a full copy of a partition's state."""
    newest = max((path for path in files if path.suffix == ".state"), key=lambda path: path.stat().st_mtime_ns)
    data = newest.read_bytes()
    header = zstandard.ZstdDecompressor().decompress(data[18 : 18 + int.from_bytes(data[10:14], "little")])
    chain: list[object] = msgspec.msgpack.decode(header)["chain"]
    return chain == []
