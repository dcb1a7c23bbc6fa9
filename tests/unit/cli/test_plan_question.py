"""Commands that change the past of a stream show their plan and ask; without a terminal they require `--yes`."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli import plan_question
from lockstep.cli.__main__ import app
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Plan, Prepared, Refused
from tests.unit.cli.documents import list_commands

COMMANDS = list_commands()
PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
ARGUMENTS = {
    "delivery rebuild": ["books"],
    "erase": ["books", "--session", "a"],
    "expire": ["books", "--days", "1"],
    "rebuild": ["books"],
    "repair": ["books"],
    "restore": ["books", "copy"],
    "rewind": ["books", "--to", "1", "--why", "a test"],
    "savepoint delete": ["books", "kept"],
    "savepoint import": ["books", "copy"],
    "shadow drop": ["books"],
    "shadow promote": ["books", "candidate"],
}


def list_options(name: str) -> set[str]:
    options = set[str]()
    for parameter in COMMANDS[name].params:
        options.update(parameter.opts)
    return options


def test_the_page_lists_the_commands_that_ask_and_each_can_only_show_its_plan() -> None:
    asking = {name for name in COMMANDS if "--yes" in list_options(name)}
    assert asking == set(ARGUMENTS)
    assert all("--plan" in list_options(name) for name in asking)
    (text,) = re.findall(r"## Commands that change the past\n\n(.*?) show their plan", PAGE.read_text())
    assert set(re.findall(r"`([a-z ]+)`", text)) == asking


class Rows(Plan, frozen=True, kw_only=True):
    """A plan that removes rows."""

    rows: int

    @property
    def is_due(self) -> bool:
        return bool(self.rows)

    def describe(self) -> Description:
        return self.make_description("a test", (Labelled("rows that go", self.rows),))


def prepare(done: list[str], rows: int, obstacles: tuple[Obstacle, ...] = ()) -> Prepared[Rows, Rows]:
    plan = Rows(stream="books", rows=rows, obstacles=obstacles)

    def act() -> Rows:
        done.append("done")
        return plan

    return Prepared(plan, act)


def make_app(done: list[str], rows: int = 3) -> typer.Typer:
    """Return an app whose command asks for confirmation."""
    made = typer.Typer()

    @made.command()
    def act(*, plan: PlanOnly = False, yes: Yes = False) -> None:
        carry_out(lambda: prepare(done, rows), plan_only=plan, yes=yes, as_json=False)

    return made


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_terminal_shows_the_plan_and_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setattr(plan_question, "is_terminal", lambda: True)
    done = list[str]()
    ended = CliRunner().invoke(make_app(done), input=answer)
    assert (ended.exit_code, bool(done)) == (code, code == 0)
    assert re.search(r"rows that go +3", ended.output)
    assert "Carry it out?" in ended.output


def test_a_plan_that_changes_nothing_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_question, "is_terminal", lambda: True)
    done = list[str]()
    ended = CliRunner().invoke(make_app(done, rows=0))
    assert (ended.exit_code, done) == (0, ["done"])
    assert "Carry it out?" not in ended.output


def test_a_plan_with_obstacles_is_refused_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_question, "is_terminal", lambda: True)
    done = list[str]()
    obstacles = (Obstacle("a", "the first reason", "one step"), Obstacle("b", "the second reason", "another step"))
    with pytest.raises(Refused, match="the first reason; the second reason") as refused:
        carry_out(lambda: prepare(done, 3, obstacles), plan_only=False, yes=False, as_json=False)
    assert refused.value.next_step == "one step; another step"
    assert done == []


def test_plan_shows_the_plan_with_its_obstacles_and_needs_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    done = list[str]()
    obstacles = (Obstacle("a", "the first reason", "one step"),)
    carry_out(lambda: prepare(done, 3, obstacles), plan_only=True, yes=False, as_json=False)
    assert done == []
    assert "refused: the first reason; next: one step" in capsys.readouterr().out


def test_the_plan_that_was_shown_is_committed_although_a_new_plan_would_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_question, "is_terminal", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda _: True)
    done = list[str]()
    plans = iter([prepare(done, 3), prepare(done, 4)])
    shown = carry_out(lambda: next(plans), plan_only=False, yes=False, as_json=False)
    assert (shown.rows, done, len(list(plans))) == (3, ["done"], 1)


def test_yes_skips_plan_and_question() -> None:
    done = list[str]()
    ended = CliRunner().invoke(make_app(done), ["--yes"])
    assert (ended.exit_code, done) == (0, ["done"])
    assert "Carry it out?" not in ended.output


def test_without_a_terminal_an_answer_is_demanded() -> None:
    done = list[str]()
    ended = CliRunner().invoke(make_app(done))
    assert (ended.exit_code, done) == (2, [])
    assert "--yes" in ended.output


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_no_command_changes_anything_without_a_terminal_and_an_answer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("copies", "erase", "history", "retention"):
        for opened in ("open_handle", "find_folders", "load_settings_or_exit"):
            monkeypatch.setattr(f"lockstep.features.{module}.commands.{opened}", lambda *_: MagicMock(), raising=False)
    monkeypatch.setattr("lockstep.cli.recover.find_folders", lambda *_: MagicMock())
    ended = CliRunner().invoke(app, [*name.split(), *ARGUMENTS[name]])
    assert ended.exit_code == 2, ended.output
    assert "--yes" in ended.output
