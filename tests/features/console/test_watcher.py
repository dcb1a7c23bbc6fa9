"""The first poll of a writer: an old heartbeat belongs to a dead writer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from lockstep.control.heartbeat import Heartbeat
from lockstep.features.console.watcher import WriterWatch
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("age", [0.0, 1.0, 10.0, 100_000.0])
def test_a_writer_that_was_killed_long_ago_is_dead_at_the_first_poll(tmp_path: Path, age: float) -> None:
    folders = StreamFolders("books", tmp_path)
    folders.control.mkdir(parents=True)
    with Heartbeat(folders.control, 3):
        (file,) = folders.control.iterdir()
        beat = file.read_bytes()
    file.write_bytes(beat)  # as after a kill
    os.utime(file, (time.time() - age,) * 2)
    assert WriterWatch(folders).poll(time.monotonic()).is_alive is (age < 3.0)
