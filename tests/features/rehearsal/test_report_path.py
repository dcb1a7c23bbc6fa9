"""A page that cannot be written is refused before its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.features.rehearsal import game_day
from lockstep.html_page import check_page_path

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["a folder", "no folder", "below a file", "a name too long"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("of somebody")
    paths = {
        "a folder": tmp_path,
        "no folder": tmp_path / "none" / "load.html",
        "below a file": tmp_path / "file" / "load.html",
        "a name too long": tmp_path / ("n" * 300),
    }
    return paths[request.param]


def test_a_load_test_is_refused_before_it_looks_for_the_stream(unwritable: Path) -> None:
    said = CliRunner().invoke(app, ["loadtest", "no_such_stream", "--report", str(unwritable)])
    assert said.exit_code == 2
    assert "Invalid value for --report" in said.stderr
    assert "written: " in said.stderr.replace("│", "")


def test_a_comparison_is_refused_before_it_reads_a_table(unwritable: Path) -> None:
    said = CliRunner().invoke(app, ["shadow", "diff", "order_books", "betting_markets", "--html", str(unwritable)])
    assert said.exit_code == 2
    assert "Invalid value for --html" in said.stderr


def test_a_game_day_is_refused_before_it_begins(
    unwritable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gameday", str(tmp_path / "repository"), "--report", str(unwritable)])
    with pytest.raises(SystemExit, match="2"):
        game_day.main()
    assert "argument --report" in capsys.readouterr().err


def test_a_page_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    check_page_path(tmp_path / "new.html")
    assert not (tmp_path / "new.html").exists()
    (tmp_path / "old.html").write_text("of the last test")
    check_page_path(tmp_path / "old.html")
    assert (tmp_path / "old.html").read_text() == "of the last test"
