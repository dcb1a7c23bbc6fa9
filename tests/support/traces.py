"""Search for a text in all files below a folder: bytes, decoded Parquet, decompressed state."""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FRAME = b"\x28\xb5\x2f\xfd"
"""Magic number of a zstd frame."""


def find_traces(root: Path, text: str) -> list[str]:
    """List the files below a folder that contain a text in content or name, relative to the folder."""
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if _holds(path, text)]


def _holds(path: Path, text: str) -> bool:
    return text in path.name or (path.is_file() and any(_has(content, text) for content in _decode(path)))


def _has(content: bytes, text: str) -> bool:
    """Whether bytes contain a text in the encodings of files and JSON, or a part of it in base64."""
    encoded = text.encode()
    inside = base64.b64encode(encoded[: len(encoded) // 3 * 3])
    return encoded in content or inside in content or text.encode("utf-16-le") in content


def _decode(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        yield _read_parquet(path)
    at = content.find(_FRAME)
    while at >= 0 and path.suffix != ".parquet":
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(content[at:])
        at = content.find(_FRAME, at + 1)
    if content[:2] == b"\x1f\x8b":
        yield zlib.decompress(content, wbits=31)


def _read_parquet(path: Path) -> bytes:
    """Return values and statistics of all columns as text; empty for a torn file."""
    try:
        with pq.ParquetFile(path) as parquet:
            rows = parquet.read().to_pylist()
            groups = [parquet.metadata.row_group(at).to_dict() for at in range(parquet.metadata.num_row_groups)]
    except (OSError, ValueError):
        return b""
    return repr((rows, groups)).encode()
