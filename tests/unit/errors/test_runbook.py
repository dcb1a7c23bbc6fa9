"""The runbook has an entry for every error; every command in the runbook, a document or a message exists."""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from lockstep.cli.__main__ import app
from tests.unit.errors.every import EVERY

if TYPE_CHECKING:
    from lockstep.errors import LockstepError

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
COMPLETE = set(re.findall(r"`(\w+)`", RUNBOOK.split("\nIf an entry has no")[1].split("\n")[0]))
"""Errors whose messages need no entry."""
ENTRIES = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
COMMAND = re.compile(r"lockstep [a-z][^`\n]*")
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("platform/lockstep/**/*.py")]
ROOT_COMMAND: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = ROOT_COMMAND.commands
GROUPS = {name: command for name, command in COMMANDS.items() if hasattr(command, "commands")}
NAME = rf"(?:(?:{'|'.join(GROUPS)}) )?[a-z][a-z-]*"
PHRASE = re.compile(rf"lockstep ({NAME})(.*?)(?=; |, | \(|: | or |[`#|]|$)", re.MULTILINE)
"""A command, and the remainder of its phrase."""
NAMED = re.compile(rf"(?:`|next: |next_step=f?\")lockstep ({NAME})")
OF_GROUP = re.compile(rf"lockstep ({'|'.join(GROUPS)}) (\S+?)(?=[\s`\",.;)]|$)", re.MULTILINE)
"""A command group, and the word that must name one of its commands."""
OPTIONS_OF_ALL = {"--help"}


def of_words(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that these words call, and the words after its name."""
    group = ROOT_COMMAND
    while words and words[0] in getattr(group, "commands", {}):
        group = group.commands[words[0]]
        words = words[1:]
    return group, words


def list_options(command: Any) -> set[str]:
    """Return the options of a command."""
    return {option for parameter in command.params for option in parameter.opts}


def test_every_error_has_an_entry_or_needs_none_and_every_entry_is_an_error(
    kinds: dict[str, type[LockstepError]],
) -> None:
    assert sorted([*ENTRIES, *COMPLETE]) == sorted(kinds)


def test_the_entries_follow_the_symptoms_in_the_order_of_their_names() -> None:
    symptoms, errors = RUNBOOK.split("\n## Errors by name\n")
    assert list(ENTRIES) == sorted(ENTRIES)
    assert [len(re.findall(r"^### ", part, re.MULTILINE)) for part in (symptoms, errors)] == [0, len(ENTRIES)]


def test_the_table_of_symptoms_names_every_section_in_order() -> None:
    table = RUNBOOK.split("\n## ")[0]
    sections = re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE)
    linked = re.findall(r"\| \[([^]]+)\]\(#[a-z-]+\) \|$", table, re.MULTILINE)
    assert linked == [name for name in sections if name not in {"Logs", "Errors by name"}]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_means_what_is_safe_and_what_to_do(name: str) -> None:
    """An entry without `Safe` describes an error that has changed nothing."""
    entry = re.fullmatch(r"(.+?)(?:\*\*Safe:\*\*(.+?))?\*\*Do:\*\*(.+)", ENTRIES[name], re.DOTALL)
    assert entry
    assert all(part.strip() for part in entry.groups() if part is not None)


@pytest.mark.parametrize("line", sorted(set(COMMAND.findall(RUNBOOK))))
def test_a_command_of_the_runbook_parses(line: str) -> None:
    command, words = of_words(shlex.split(line)[1:])
    assert not hasattr(command, "commands"), f"{line}: no such command"
    command.make_context("lockstep", words)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_the_commands_that_an_error_names_exist_with_their_options(error: LockstepError) -> None:
    for said in re.findall(r"lockstep [a-z][a-z ]*.*?(?= \(|, or |; |, then[: ]|`|$)", error.next_step):
        command, words = of_words(said.split()[1:])
        assert not hasattr(command, "commands"), f"{said}: no such command"
        assert {word for word in words if word.startswith("--")} <= list_options(command)


def test_a_command_in_a_text_has_the_options_that_it_is_given() -> None:
    said = {phrase for path in TEXTS for phrase in PHRASE.findall(path.read_text())}
    of_name = {name: of_words(name.split())[0] for name in {name for name, _ in said}}
    wrong = [
        f"lockstep {name}{rest}"
        for name, rest in sorted(said)
        if not hasattr(of_name[name], "commands")
        and set(re.findall(r"(?<= )--[a-z][a-z-]*", rest)) - OPTIONS_OF_ALL - list_options(of_name[name])
    ]
    assert wrong == []


def test_a_text_that_names_a_command_names_an_existing_one() -> None:
    named = set(chain.from_iterable(NAMED.findall(path.read_text()) for path in TEXTS))
    assert len(named) > len(GROUPS)
    assert {name for name in named if name.split()[0] not in COMMANDS} == set()


def test_a_text_that_names_a_group_names_one_of_its_commands() -> None:
    named = set(chain.from_iterable(OF_GROUP.findall(path.read_text()) for path in TEXTS))
    assert {group for group, _ in named} == set(GROUPS)
    assert {(group, word) for group, word in named if word not in {*GROUPS[group].commands, "--help"}} == set()


def test_every_option_of_resume_is_explained() -> None:
    resume, _ = of_words(["resume"])
    for parameter in resume.params:
        if parameter.opts[0].startswith("--accept") or parameter.opts[0] in {"--fixed", "--from-snapshot"}:
            assert f"`{parameter.opts[0]}`" in RUNBOOK
