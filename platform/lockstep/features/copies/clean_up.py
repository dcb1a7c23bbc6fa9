"""Partly copied files, which killed copies left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.features.copies.copied_files import PARTIAL
from lockstep.operations.clean_up import CleanedStream, CleanUpStep
from lockstep.storage import find_storage

RECENT_SECONDS = 3600.0
"""A younger file may be copied at this moment: each block of it renews its time."""


def _list_partial_files(stream: CleanedStream) -> Iterator[Path]:
    storage = find_storage(stream.folders.state)
    abandoned_before = time.time() - RECENT_SECONDS
    for path in storage.find_files(stream.folders.state, f"*{PARTIAL}"):
        status = storage.get_status(path)
        if status is None or status.modified_at < abandoned_before:
            yield path


PARTIAL_FILES = CleanUpStep(name="partly copied files", list_files=_list_partial_files)
