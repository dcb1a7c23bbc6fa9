"""Simultaneous first starts of a stream: each of its tables is created once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from lockstep.table import commit_kinds, delta_log
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

STARTS = 4
ROUNDS = 12


def test_of_first_starts_at_once_one_creates_and_all_go_on(tmp_path: Path) -> None:
    """Four starts made two tables over each other in 55 of 60 rounds, when delta-rs retried at version 1."""
    for number in range(ROUNDS):
        folders = folders_in(tmp_path / str(number))
        barrier = threading.Barrier(STARTS)

        def start(folders: StreamFolders = folders, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return ProtocolRun(folders).output.table_id

        with ThreadPoolExecutor(STARTS) as pool:
            ids = {done.result() for done in [pool.submit(start) for _ in range(STARTS)]}
        assert len(ids) == 1
        for table in (folders.table, folders.ledger, folders.quarantine):
            assert DeltaTable(table).version() == 0, table
        entry = delta_log.read_entry(folders.table, 0)
        assert entry is not None
        assert entry.kind == commit_kinds.CREATE.name
