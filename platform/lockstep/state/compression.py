"""Decompression of state, which tells lack of memory from a damaged frame."""

from __future__ import annotations

import zstandard

_NO_MEMORY = "not enough memory"
"""Of the text of ZSTD_error_memory_allocation: the binding keeps no code (zstandard 0.25)."""


def is_lack_of_memory(error: zstandard.ZstdError) -> bool:
    """Whether an error is due to the memory of the machine, and not to the data."""
    return _NO_MEMORY in str(error)


def read_frame(decompressor: zstandard.ZstdDecompressor, frame: memoryview) -> bytes:
    """Return the content of a frame.

    Raises:
        MemoryError: zstd lacks memory.
        zstandard.ZstdError: The frame is damaged.
    """
    try:
        return decompressor.decompress(frame)
    except zstandard.ZstdError as error:
        if is_lack_of_memory(error):
            raise MemoryError(str(error)) from error
        raise
