"""The side files of batches before a rewind stay those of their batches in any later generation of the head."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.verify.read_stored import read_stored
from lockstep.verify.report import Violations
from tests.support.protocol_run import TOPIC, TOPIC_ID, ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import SideFile

HOUR = 3600.0


def quarantined(run: ProtocolRun, offset: int) -> SideFile:
    row = QuarantineRow(
        generation=run.head.generation, batch=run.head.batch + 1, topic_id=TOPIC_ID, topic=TOPIC, partition=0,
        offset=offset, session="s", cause="gap", expected="1", found="2", timestamp=None, key=b"k", value=b"v",
        value_bytes=1, headers=[],
    )  # fmt: skip
    return write_quarantine(run.folders.quarantine, [row])


def test_quarantine_of_before_a_rewind_is_proven_after_compaction_and_clean_up_of_the_log(tmp_path: Path) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    for number in range(7):
        files = (quarantined(run, number), quarantined(run, number + 100)) if number in {3, 4} else ()
        run.forward(run.commit(msgspec.structs.replace(run.prepared(full=True), quarantine=files)).head)
    run.rewind(6)
    for _ in range(30):
        run.batch(full=True)
    write_checkpoint(run.folders.table)
    for _ in range(5):
        run.batch(full=True)
    compact_side_tables(run.folders, msgspec.structs.replace(run.head, hour="2099-01-01T00"))
    for path in run.folders.root.rglob("*"):
        os.utime(path, (time.time() - 3 * HOUR,) * 2)
    run_housekeeping(run.folders, retention_seconds=HOUR)
    violations = Violations()
    stored = read_stored(run.folders, violations, tmp_path)
    assert list(violations.listed) == []
    (kept,) = stored.quarantine.values()
    assert kept.read_numbers("offset").tolist() == [3, 4, 103, 104]
