"""This release opens, reads and continues the fixtures of all releases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from lockstep import Kind
from lockstep.operations.inspect.state import StateFilter, read_states
from lockstep.operations.repair import repair_stream
from tests.support.kept_stream import Sent, keeping, message, plain_fold, script
from tests.support.offline_stream import Offline
from tests.support.plain_reader import read_table, rows_of

if TYPE_CHECKING:
    from lockstep.table.layout import StreamFolders

FIXTURES = Path(__file__).resolve().parent / "fixtures"
RELEASES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir() and path.name[0].isdigit())
COLUMNS = ("_offset", "_session", "name", "value", "total")


@pytest.fixture(params=RELEASES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Offline:
    """Return a copy of the folder that a release wrote, with the messages that it had read."""
    shutil.copytree(FIXTURES / str(request.param), tmp_path / "tables")
    stream = Offline(keeping(), tmp_path)
    for batch in script():
        for topic, sent in batch.items():
            stream.log.append(topic, sent)
    return stream


def told(batches: list[dict[str, list[Sent]]], topic: str) -> list[Sent]:
    """Return all messages of a topic."""
    return [sent for batch in batches for sent in batch.get(topic, [])]


def values(stream: Offline, topic: str) -> dict[str, object]:
    """Return the values of every session of a topic, as `lockstep state` shows them."""
    listed = read_states(stream.stream, stream.root / "tables", StateFilter(topic=topic)).sessions
    found = {}
    for item in listed:
        wanted = StateFilter(topic=topic, session=item.session)
        (shown,) = read_states(stream.stream, stream.root / "tables", wanted).sessions
        found[item.session] = cast("dict[str, object]", shown.state)["values"]
    return found


def check_against_the_plain_fold(stream: Offline, batches: list[dict[str, list[Sent]]]) -> None:
    for topic in ("kept.one", "kept.two"):
        rows, states = plain_fold(told(batches, topic))
        assert rows == rows_of(read_table(stream.folders.table), topic, COLUMNS)
        assert states == values(stream, topic)


def conditions(folders: StreamFolders) -> dict[str, str]:
    return {
        check.check: check.condition for check in repair_stream(folders, apply=False).checks if check.condition != "ok"
    }


def test_there_is_a_fixture_of_the_first_release() -> None:
    assert RELEASES[0] == "0.1.0"


def test_rows_and_states_of_an_older_release_are_read(old: Offline) -> None:
    check_against_the_plain_fold(old, script())
    assert conditions(old.folders) == {}


def test_a_stream_of_an_older_release_goes_on(old: Offline) -> None:
    further: list[dict[str, list[Sent]]] = [
        {
            "kept.one": [("a", message(Kind.SNAPSHOT, 9, x=1)), ("a", message(Kind.UPDATE, 10, x=1, y=1))],
            "kept.two": [("täglich", message(Kind.UPDATE, 2, x=6)), ("long" * 200, message(Kind.UPDATE, 3, y=2))],
        },
        {"kept.three": [("new", message(Kind.SNAPSHOT, 1, x=1)), ("new", message(Kind.UPDATE, 2, x=1))]},
        {"kept.two": [("late", message(Kind.UPDATE, 2, x=1)), ("late", message(Kind.END, 3))]},
    ]
    old.run(*further[:2])
    old.run(further[2])
    check_against_the_plain_fold(old, [*script(), *further])
    assert values(old, "kept.three") == {"new": {"x": 2}}
    assert conditions(old.folders) == {}
