"""Faults of a game day affect only its own processes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.control.heartbeat import RUN_FILE, Heartbeat, RunHeartbeat, is_process_alive, read_this_process
from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.rehearsal import fault_injection
from lockstep.features.rehearsal.fault_injection import FaultInjector
from lockstep.features.rehearsal.fault_plan import FaultKind, PlannedFault
from lockstep.settings import Settings
from tests.support.stream_table import StreamTable

if TYPE_CHECKING:
    from pathlib import Path

RUN = "run"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_process_that_got_the_pid_of_a_dead_run_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_injection, "PATIENCE_SECONDS", 0.1)
    platform = LocalPlatform(tmp_path, tmp_path)
    table = StreamTable(platform.tables)
    this = read_this_process()
    assert this is not None
    fault = PlannedFault(1, FaultKind.RUN_KILLED, "readings", outage_seconds=0.0, calm_seconds=0.0)
    with subprocess.Popen(SLEEP) as other, Heartbeat(table.folders.control, table.head.epoch, run_id=RUN):
        dead = msgspec.structs.replace(this, pid=other.pid, started=1)
        assert not is_process_alive(dead)
        (table.folders.control / f"{RUN}{RUN_FILE}").write_bytes(msgspec.json.encode(RunHeartbeat(1, dead)))
        try:
            with pytest.raises(LockstepError, match="stream readings did not show a run"):
                FaultInjector(platform, Settings(), {}, {}, seed=1).inject(fault)
            assert other.poll() is None
        finally:
            other.kill()
