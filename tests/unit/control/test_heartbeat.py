"""The liveness file of a run, from its first step to its end or kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from lockstep.control.heartbeat import (
    RECORD_BYTES,
    Heartbeat,
    HeartbeatRecord,
    Phase,
    ProcessIdentity,
    RunHeartbeat,
    forget_run,
    is_process_alive,
    read_heartbeat,
    read_run_heartbeats,
    read_this_process,
    run_heartbeat,
)
from lockstep.storage.local import LocalStorage

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 60.0
COUNTS = """
import sys, time
from pathlib import Path
from lockstep.control.heartbeat import run_heartbeat
with run_heartbeat(Path(sys.argv[1]), "killed"):
    time.sleep(600)
"""


class IntegrityError(Exception):
    """The error that ends the run."""


def counter(control: Path, run_id: str) -> int:
    pulse = read_run_heartbeats(control).get(run_id)
    return pulse.counter if pulse is not None else 0


def wait_for(control: Path, run_id: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while counter(control, run_id) < count:
        assert time.monotonic() < deadline, f"{run_id} does not count to {count}"
        time.sleep(0.05)


def test_a_run_counts_from_its_first_step_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    control = tmp_path / "control"
    with run_heartbeat(control, "a"), run_heartbeat(control, "b"):
        assert set(read_run_heartbeats(control)) == {"a", "b"}
        wait_for(control, "a", counter(control, "a") + 2)
    assert list(control.iterdir()) == []


def test_readers_see_a_whole_heartbeat_although_counts_are_written_over_each_other(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, 3, never_ending=True, run_id="run")
    heartbeat._write(1)  # noqa: SLF001  # faster than a writer counts
    inode = (tmp_path / "liveness-3.json").stat().st_ino
    stop = threading.Event()
    seen = list[HeartbeatRecord | None]()

    def read() -> None:
        while not stop.is_set():
            seen.append(read_heartbeat(tmp_path, 3))

    reader = threading.Thread(target=read)
    reader.start()
    for counter in range(100, 3_000):  # 512 bytes each
        heartbeat._write(counter)  # noqa: SLF001  # the same
    stop.set()
    reader.join()
    assert (tmp_path / "liveness-3.json").stat().st_ino == inode
    assert {(each.phase, each.run_id) for each in seen if each is not None} == {(Phase.WRITING, "run")}
    assert None not in seen


def test_a_phase_is_never_mixed_with_another_and_a_removed_file_is_written_again(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, 3)
    path = tmp_path / "liveness-3.json"
    heartbeat._write(1)  # noqa: SLF001  # without its thread
    before = path.stat().st_ino
    with path.open() as held:  # the inode number of a removed file may be reused
        heartbeat.drain()
        assert path.stat().st_ino != before
        assert held.read().strip()
    path.unlink()
    heartbeat._write(5)  # noqa: SLF001  # the same
    last = read_heartbeat(tmp_path, 3)
    assert last is not None
    assert (last.counter, last.phase) == (5, Phase.DRAINING)


def test_a_run_whose_control_folder_cannot_be_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("a file, not a folder")
    with run_heartbeat(tmp_path / "control" / "deeper", "a"):
        pass


def test_the_end_of_a_writer_without_its_control_folder_does_not_hide_the_outcome(tmp_path: Path) -> None:
    def lose_the_folder() -> None:
        with Heartbeat(control, 1):
            shutil.rmtree(control)
            control.write_text("a file, not a folder")
            raise IntegrityError

    control = tmp_path / "control"
    with pytest.raises(IntegrityError):
        lose_the_folder()


def test_a_run_that_is_killed_leaves_its_count_and_its_process_is_known_to_be_gone(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", COUNTS, str(tmp_path)], cwd=ROOT)
    try:
        wait_for(tmp_path, "killed", 1)
        assert is_process_alive(read_run_heartbeats(tmp_path)["killed"].process)
    finally:
        process.kill()
        process.wait()
    left = read_run_heartbeats(tmp_path)["killed"]
    assert not is_process_alive(left.process)
    assert read_run_heartbeats(tmp_path)["killed"] == left
    forget_run(tmp_path, "killed")
    assert read_run_heartbeats(tmp_path) == {}


def test_a_process_of_another_time_or_another_machine_is_not_taken_for_this_one() -> None:
    mine = read_this_process()
    assert isinstance(mine, ProcessIdentity)
    assert is_process_alive(mine)
    assert not is_process_alive(msgspec.structs.replace(mine, started=mine.started - 1))
    assert not is_process_alive(msgspec.structs.replace(mine, place="another boot"))
    assert not is_process_alive(None)


def test_half_a_liveness_file_is_no_sign_of_life(tmp_path: Path) -> None:
    (tmp_path / "a.run.json").write_text('{"counter":')
    assert read_run_heartbeats(tmp_path) == {}


@pytest.mark.parametrize("counter", [9, 10, 99, 999, 99_999, 12_345])
@pytest.mark.parametrize("is_run", [False, True])
def test_a_heartbeat_that_is_read_while_it_is_written_over_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, counter: int, is_run: bool
) -> None:
    """A mix of two contents is read again; otherwise a live writer would count as dead."""
    path = tmp_path / ("1.run.json" if is_run else "liveness-3.json")
    records = [
        RunHeartbeat(each) if is_run else HeartbeatRecord(each, Phase.WRITING) for each in (counter, counter + 1)
    ]
    before, after = (msgspec.json.encode(each).ljust(RECORD_BYTES) for each in records)
    path.write_bytes(after)
    for split in range(len(before.rstrip()) + 2):
        contents = [after[:split] + before[split:], after]
        monkeypatch.setattr(LocalStorage, "read", lambda *_, of=contents: of.pop(0))
        found = read_run_heartbeats(tmp_path).get("1") if is_run else read_heartbeat(tmp_path, 3)
        assert found is not None
