"""Strict type checkers accept a user's correct stream module and find each mistake of a wrong module."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Checker = Callable[[Path, Path, Path], dict[int, str]]

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
USER_STREAM = Path(__file__).parent / "user_stream.py"

# Each marked line is one mistake; a checker must find all of them and nothing else.
MISTAKES = """
from collections.abc import Iterable
import msgspec
from lockstep import Envelope, Every, Json, Kind, Record, Sequence, Stream, Strict, TableFold, Topics, Transform

class Message(msgspec.Struct):
    seq: int
    key: str
    value: float

class State(msgspec.Struct):
    total: float

class Reading(msgspec.Struct):
    total: float

class OtherRow(msgspec.Struct):
    total: float

class Sums(Transform[Message, State, Reading]):
    def envelope(self, message: Message, record: Record) -> Envelope:
        return Envelope(message.key, "snapshot", sequence=message.seq)  # wrong: a text is no Kind

    def on_snapshot(self, message: Message, record: Record, previous: State | None) -> State:
        return Reading(message.value)  # wrong: a row is no state

    def on_update(self, state: State, message: Message, record: Record) -> Iterable[Reading]:
        state.totals = message.value  # wrong: no such field of the state
        message.valeu  # wrong: no such field of the message
        record.offset = 3  # wrong: a record is read-only
        yield OtherRow(state.total)  # wrong: not the declared row

class Half(Transform[Message, State, Reading]):
    def envelope(self, message: Message, record: Record) -> Envelope:
        return Envelope(message.key, Kind.SNAPSHOT)

    def on_snapshot(self, message: Message, record: Record, previous: State | None) -> State:
        return State(0.0)

    def on_update(self, state: Message, message: Message, record: Record) -> Iterable[Reading]:  # wrong: state
        return []

class Levels(TableFold[Message, str, float, Reading]):
    def envelope(self, message: Message, record: Record) -> Envelope:
        return Envelope(message.key)

    def changes(self, message: Message) -> Iterable[tuple[int, float | None]]:  # wrong: keys are texts
        return []

    def emit(self, message: Message | None, key: str, new: float | None, previous: float | None) -> Reading:
        return Reading(new)  # wrong: a removed row has no value

class Unfinished(TableFold[Message, str, float, Reading]):
    def envelope(self, message: Message, record: Record) -> Envelope:
        return Envelope(message.key)

topics = Topics(pattern="s.+")
strict = Strict(evidence=Sequence())
Stream(name="a", topics="s.+", transform=Sums(), integrity=strict)  # wrong: a text is no Topics
Stream(name="a", topics=topics, transform=Sums, integrity=strict)  # wrong: the class, not a value
Stream(name="a", topics=topics, transform=Unfinished(), integrity=strict)  # wrong: abstract
Stream(name="a", topics=topics, transform=Sums(), integrity=Strict(evidence=Json()))  # wrong: no evidence
Stream(name="a", topics=topics, transform=Sums(), integrity=strict, triger=Every())  # wrong: no such part
Stream(name="a", topics=topics, transform=Sums())  # wrong: no integrity class
sums = Stream(name="a", topics=topics, transform=Sums(), integrity=strict)
typed: Stream[Message, State, OtherRow] = sums  # wrong: another row
""".removeprefix("\n")


def mypy_errors(path: Path, folder: Path, cache: Path) -> dict[int, str]:
    """Return line and text of each error, by mypy with its strict options."""
    command: list[str | Path] = [
        TOOLS / "mypy",
        "--strict",
        "--explicit-package-bases",
        "--config-file=",
        f"--cache-dir={cache}",
        "--no-error-summary",
        path,
    ]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert said.stderr == ""
    found = re.findall(r"^[^:\n]+:(\d+): error: (.*)$", said.stdout, re.MULTILINE)
    return {int(line): text for line, text in found}


def basedpyright_errors(path: Path, folder: Path, cache: Path) -> dict[int, str]:  # noqa: ARG001  # it has no cache
    """Return line and text of each error, by basedpyright in strict mode."""
    project = folder / "pyrightconfig.json"
    settings = {"typeCheckingMode": "strict", "include": [str(path)], "extraPaths": [str(ROOT / "platform")]}
    project.write_text(json.dumps({**settings, "pythonVersion": "3.11"}))
    command: list[str | Path] = [
        TOOLS / "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        project,
    ]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(said.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found if each["severity"] == "error"}


CHECKERS = pytest.mark.parametrize("errors_of", [mypy_errors, basedpyright_errors])


@CHECKERS
def test_a_right_stream_module_passes_strict_checks(errors_of: Checker, tmp_path: Path, mypy_cache: Path) -> None:
    assert errors_of(USER_STREAM, tmp_path, mypy_cache) == {}


@CHECKERS
def test_every_mistake_in_a_stream_module_is_found(errors_of: Checker, tmp_path: Path, mypy_cache: Path) -> None:
    module = tmp_path / "mistakes.py"
    module.write_text(MISTAKES)
    lines = enumerate(MISTAKES.splitlines(), start=1)
    marked = {number: line.partition("# wrong: ")[2] for number, line in lines if "# wrong: " in line}
    found = errors_of(module, tmp_path, mypy_cache)
    assert found.keys() == marked.keys(), {"found": found, "marked": marked}
