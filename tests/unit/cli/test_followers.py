"""Followers on the command line: `status` shows each follower with its lag, `forget` deletes its position."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.cli.inspect import describe_status
from lockstep.cli.output import print_out
from lockstep.operations.followers import FollowerStatus
from lockstep.table.follower_positions import (
    FollowerName,
    FollowerPosition,
    Reads,
    make_unread_history,
    read_follower_positions,
    write_position,
)
from tests.unit.cli.test_status import make_status

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NAME = FollowerName("derived", "activity")
POSITION = FollowerPosition(
    kind=NAME.kind,
    name=NAME.name,
    command="lockstep derive activity",
    reads=Reads.COMMITS,
    rebuilds=True,
    sources=(make_unread_history("books"),),
    last_run=datetime(2026, 1, 1, tzinfo=UTC),
)


def test_a_forgotten_follower_has_no_position_and_is_unknown_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_TABLE_ROOT", str(tmp_path))
    write_position(tmp_path, POSITION)
    done = CliRunner().invoke(app, ["forget", "derived", "activity", "--json"])
    assert (done.exit_code, msgspec.json.decode(done.stdout, type=FollowerName)) == (0, NAME)
    assert read_follower_positions(tmp_path).read == ()
    again = CliRunner().invoke(app, ["forget", "derived", "activity"])
    assert again.exit_code == 1
    assert "no follower derived activity has a position" in again.stderr


def test_the_status_shows_each_follower_in_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = (
        FollowerStatus(kind="derived", name="activity", sources=("books",), behind=3, next_run="goes on"),
        FollowerStatus(kind="export", name="books", sources=("books",), reads=Reads.HOURS, behind=2, problem="failed"),
        FollowerStatus(kind="derived", name="new", sources=("books",)),
    )
    print_out(describe_status(msgspec.structs.replace(make_status(1, 0, halted=False, age=None), followers=shown)))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "derived activity books 3 commits - - goes on" in lines
    assert "export books books 2 hours - - failed" in lines
    assert any(line.startswith("derived new books - - -") for line in lines)
