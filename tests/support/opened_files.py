"""Counts the opened files of a folder by inotify, for any library."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OPENED = 0x20
_NONBLOCKING = 0o4000
_EVENT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened_files(*folders: Path) -> Iterator[list[str]]:
    """Record the names of files opened in some folders, one entry for each opening; filled when the block ends."""
    names: list[str] = []
    watch = _LIBC.inotify_init1(_NONBLOCKING)
    try:
        for folder in folders:
            assert _LIBC.inotify_add_watch(watch, str(folder).encode(), _OPENED) >= 0
        yield names
        while True:
            try:
                events = os.read(watch, 1 << 20)
            except BlockingIOError:
                break
            names += _names(events)
    finally:
        os.close(watch)


def _names(events: bytes) -> Iterator[str]:
    at = 0
    while at < len(events):
        *_, length = _EVENT.unpack_from(events, at)
        name = events[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
        at += _EVENT.size + length
        if name:  # empty if the folder itself was opened
            yield name
