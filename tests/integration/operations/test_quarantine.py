"""Messages in quarantine can be listed, read and exported unchanged; none reaches a terminal as a command."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from lockstep import Limits, Ordered
from lockstep.cli.__main__ import app
from lockstep.cli.output import escape_text
from lockstep.operations.quarantine import (
    ExportRefused,
    NotInQuarantine,
    Place,
    QuarantineFilter,
    QuarantineGroup,
    export_quarantined,
    list_quarantine,
    read_quarantined,
)
from lockstep.operations.stream_table import NoTable
from lockstep.testing import read_messages
from tests.support.adding_stream import POISON, adding
from tests.support.feed import Feed, snapshot, update
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

EVIL = "\x1b[2J\x07name\nerror: all is well\u202e"
"""Clears a terminal, rings, starts a new line and reverses the text direction."""
GARBAGE = EVIL.encode() + b"\x00\xff" + b"x" * 2_000

Read = tuple[LocalRuns, str, str]


@pytest.fixture(scope="module")
def read(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Two topics: a message that fails the fold with two messages after it; in a later batch, garbage."""
    feed = Feed(broker.bootstrap_servers, f"quarantine_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern, Ordered()), feed.bootstrap_servers, tmp_path_factory.mktemp("quarantine"))
    runs = runs.with_limits(Limits(message_bytes=10_000))
    good = feed.create("good")
    evil = feed.create("evil")
    feed.send(good, [snapshot(1, a=1), update(2, a=POISON), update(3, a=1), update(4, a=1)], key="s")
    runs.run()
    producer = Producer({"bootstrap.servers": feed.bootstrap_servers})
    producer.produce(evil, GARBAGE, key=EVIL, headers=[(EVIL, b"\x1b[31m"), ("none", None)], partition=0)
    producer.produce(evil, update(1, a=1), key=EVIL, partition=0)
    producer.produce(evil, None, key="null", partition=0)
    assert producer.flush(60) == 0
    runs.run()
    return runs, good, evil


def groups(runs: LocalRuns, wanted: QuarantineFilter) -> set[tuple[str, int, str, str | None, int, int, int, int]]:
    from msgspec.structs import astuple

    found = list_quarantine(runs.folders, wanted)
    assert found.messages == sum(group.messages for group in found.groups)
    return {astuple(group) for group in found.groups}


def test_messages_are_listed_by_cause_and_session_with_their_offsets(read: Read) -> None:
    runs, good, evil = read
    raised = (good, 0, "transform raised", "s", 1, 1, 1, 1)
    after = (good, 0, "suspended", "s", 2, 2, 3, 1)
    garbage = (evil, 0, "undecodable", EVIL, 1, 0, 0, 2)
    null = (evil, 0, "undecodable", "null", 1, 2, 2, 2)
    unknown = (evil, 0, "unknown session", EVIL, 1, 1, 1, 2)
    assert groups(runs, QuarantineFilter()) == {raised, after, garbage, null, unknown}
    assert groups(runs, QuarantineFilter(cause="undecodable")) == {garbage, null}
    assert groups(runs, QuarantineFilter(topic=good)) == {raised, after}
    assert groups(runs, QuarantineFilter(session=EVIL)) == {garbage, unknown}
    assert groups(runs, QuarantineFilter(since=2)) == {garbage, null, unknown}
    assert groups(runs, QuarantineFilter(since=2, session="s")) == set()


def test_a_selection_of_nothing_says_what_there_is(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list_quarantine(read[0].folders, QuarantineFilter(cause="nope"))
    assert (found.messages, found.groups) == (0, ())
    assert found.messages_total == list_quarantine(read[0].folders, QuarantineFilter()).messages
    monkeypatch.setattr("lockstep.cli.messages.find_folders", lambda _: read[0].folders)
    shown = CliRunner().invoke(app, ["quarantine", "list", "adding", "--cause", "nope"]).stdout
    total = found.messages_total
    causes = ", ".join(found.causes)
    assert "undecodable" in found.causes
    assert shown.splitlines()[0] == (
        f"adding: 0 of {total} messages in quarantine are of cause 'nope'; causes: {causes}"
    )
    some = CliRunner().invoke(app, ["quarantine", "list", "adding", "--topic", read[1], "--since", "1"]).stdout
    assert (
        some.splitlines()[0] == f"adding: 3 of {total} messages in quarantine are of topic '{read[1]}', since batch 1"
    )


def test_the_largest_groups_come_first_and_what_is_left_out_is_counted(read: Read) -> None:
    runs, good, _ = read
    found = list_quarantine(runs.folders, QuarantineFilter(), limit=1)
    assert found.groups == (QuarantineGroup(good, 0, "suspended", "s", 2, 2, 3, 1),)
    assert (found.messages, found.more) == (6, 4)


def test_a_message_is_shown_as_it_came(read: Read) -> None:
    runs, _, evil = read
    (row,) = read_quarantined(runs.folders, Place(evil, 0, 0))
    assert (row.key, row.value, row.value_bytes) == (EVIL.encode(), GARBAGE, len(GARBAGE))
    assert [(header.name, header.value) for header in row.headers] == [(EVIL, b"\x1b[31m"), ("none", None)]
    assert (row.cause, row.session, row.batch) == ("undecodable", EVIL, 2)
    with pytest.raises(NotInQuarantine, match=f"{evil}/0@77 is not in quarantine"):
        read_quarantined(runs.folders, Place(evil, 0, 77))


EXPORT = """
import resource
import signal
import sys
from pathlib import Path
from lockstep.operations.quarantine import ExportRefused, QuarantineFilter, export_quarantined
from lockstep.table.layout import StreamFolders

if sys.argv[3:]:  # a disk that is full
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    export_quarantined(StreamFolders("adding", Path(sys.argv[1])), QuarantineFilter(), Path(sys.argv[2]))
except ExportRefused:
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("ending", "limit"),
    [
        pytest.param("jsonl", [], id="jsonl-there"),
        pytest.param("parquet", ["full"], id="parquet-full"),
        pytest.param("jsonl", ["full"], id="jsonl-full", marks=pytest.mark.slow),
        pytest.param("parquet", [], id="parquet-there", marks=pytest.mark.slow),
    ],
)
def test_a_refused_export_ends_its_process_at_once(read: Read, tmp_path: Path, ending: str, limit: list[str]) -> None:
    """An abandoned scan would hang or crash the process at its end (12 of 12 times)."""
    target = tmp_path / f"kept.{ending}"
    if not limit:
        target.touch()
    command = [sys.executable, "-c", EXPORT, str(read[0].folders.root), str(target), *limit]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr) == (1, "")
    assert target.exists() is not bool(limit)


def test_an_export_holds_every_byte_and_overwrites_nothing(read: Read, tmp_path: Path) -> None:
    runs, _, evil = read
    lines = tmp_path / "kept.jsonl"
    parquet = tmp_path / "kept.parquet"
    assert export_quarantined(runs.folders, QuarantineFilter(topic=evil), lines).messages == 3
    assert export_quarantined(runs.folders, QuarantineFilter(topic=evil), parquet).messages == 3
    decoded = [json.loads(line) for line in lines.read_text().splitlines()]
    rows = pq.read_table(parquet).to_pylist()
    as_values = {row["offset"]: (row["key"], row["value"], row["headers"]) for row in rows}
    assert {at: (key, value) for at, (key, value, _) in as_values.items()} == {
        0: (EVIL.encode(), GARBAGE),
        1: (EVIL.encode(), update(1, a=1)),
        2: (b"null", None),
    }
    for row in decoded:
        value = row["value"] and base64.b64decode(row["value"])
        assert (base64.b64decode(row["key"]), value) == as_values[row["offset"]][:2]
        assert (row["topic"], row["partition"]) == (evil, 0)
    assert [header["name"] for header in as_values[0][2]] == [EVIL, "none"]
    assert [(each.key, each.value) for each in read_messages(lines)] == [as_values[at][:2] for at in (0, 1, 2)]
    before = lines.read_bytes()
    with pytest.raises(ExportRefused, match="it is there already"):
        export_quarantined(runs.folders, QuarantineFilter(), lines)
    with pytest.raises(ExportRefused, match="No such file or directory"):
        export_quarantined(runs.folders, QuarantineFilter(), tmp_path / "nowhere" / "kept.jsonl")
    assert lines.read_bytes() == before


def test_nothing_of_strangers_reaches_a_terminal_raw(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the list, nor in a message, nor as a separate line."""
    runs, _, evil = read
    monkeypatch.setattr("lockstep.cli.messages.find_folders", lambda _: runs.folders)
    shown = CliRunner().invoke(app, ["quarantine", "show", "adding", f"{evil}/0@0"])
    listed = CliRunner().invoke(app, ["quarantine", "list", "adding"])
    assert (shown.exit_code, listed.exit_code) == (0, 0), shown.output + listed.output
    for said in (shown.stdout, listed.stdout):
        assert all(letter.isprintable() for line in said.split("\n") for letter in line)
        assert not any(line.startswith("error") for line in said.splitlines())
        assert r"\x1b[2J\x07name\nerror: all is well\u202e" in said
    assert f"00000000  {EVIL.encode()[:16].hex(' ')}" in shown.stdout
    assert f"... {len(GARBAGE) - 512} bytes more" in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [["show", "adding", "no-place"], ["export", "adding", "file.csv"], ["list"], ["list", "adding", "--since", "-1"]],
    ids=" ".join,
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["quarantine", *arguments]).exit_code == 2


def test_without_a_table_it_is_said_how_to_start(runs: LocalRuns) -> None:
    with pytest.raises(NoTable):
        list_quarantine(runs.folders, QuarantineFilter())


def test_what_a_terminal_obeys_is_shown_as_an_escape() -> None:
    assert escape_text("plain é 漢 'quoted'") == "plain é 漢 'quoted'"
    assert escape_text("\x1b\n\t\x7f\u202e\udc80\U000e0001") == r"\x1b\n\t\x7f\u202e\udc80\U000e0001"


def test_the_key_of_a_message_that_was_not_decoded_is_not_called_its_session(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.cli.messages.find_folders", lambda _: read[0].folders)
    shown = CliRunner().invoke(app, ["quarantine", "show", "adding", f"{read[2]}/0@2"]).stdout
    assert re.search(r"^session +unknown, of key null$", shown, re.MULTILINE)
    listed = CliRunner().invoke(app, ["quarantine", "list", "adding", "--topic", read[1]]).stdout
    assert "unknown, of key" not in listed
