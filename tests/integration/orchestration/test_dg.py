"""Dagster's own command for projects, `dg`, in this repository as it is cloned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from dagster_graphql import DagsterGraphQLClient

from lockstep.features.localdev.local_servers import find_dagster_problems
from lockstep.features.localdev.processes import find_free_ports, start_detached
from tests.support.descendants import list_descendants
from tests.support.installation import wait_until

ROOT = Path(__file__).parents[3]
DG = str(Path(sys.executable).parent / "dg")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user with a Dagster home and without Kafka."""
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    places = {"DAGSTER_HOME": str(home), "HOME": str(home), "LOCKSTEP_TABLE_ROOT": str(home / "tables")}
    return {**os.environ, **places, "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}


def test_dg_check_defs_accepts_the_repository(tmp_path: Path) -> None:
    command = [DG, "check", "defs"]
    checked = subprocess.run(
        command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=240
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "All definitions loaded successfully" in checked.stdout + checked.stderr


@pytest.mark.slow
def test_dg_dev_brings_up_the_code_location_and_every_daemon(tmp_path: Path) -> None:
    (port,) = find_free_ports(1)
    command = [DG, "dev", "--port", str(port), "--host", "127.0.0.1"]
    process = start_detached(command, folder=ROOT, log=tmp_path / "dg.log", environment=environment(tmp_path))
    console = DagsterGraphQLClient("127.0.0.1", port)
    try:
        wait_until(lambda: process.poll() is not None or not find_dagster_problems(console, tmp_path), "Dagster works")
        assert process.poll() is None, (tmp_path / "dg.log").read_text()
    finally:
        family = [process.pid, *list_descendants(process.pid)]
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            for pid in filter(psutil.pid_exists, family):
                os.kill(pid, signal.SIGKILL)
            raise
    wait_until(lambda: not any(map(psutil.pid_exists, family)), "no process is left", seconds=120)
