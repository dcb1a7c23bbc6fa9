"""A command that runs out of memory reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.features.copies import commands

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 1200000000 failed")])
def test_a_command_that_runs_out_of_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: MemoryError
) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(commands, "find_folders", fail)
    done = CliRunner().invoke(app, ["restore", "books", str(tmp_path), "--yes"])
    assert done.exit_code == 1
    assert "error: this process ran out of memory" in done.output
    assert "Traceback" not in done.output
