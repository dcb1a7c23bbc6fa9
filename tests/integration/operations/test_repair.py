"""Damage that a start would refuse: found, repaired if nothing is undone, or reported with the next step."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Limits
from lockstep.errors import TableError
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.inspect.status import read_status
from lockstep.operations.plan_frame import Refused
from lockstep.operations.repair import Repair, repair_stream
from lockstep.operations.stream_table import NoTable
from lockstep.table import delta_log
from lockstep.table.torn_entry import find_newest_version, find_torn_version
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.integration.operations.test_lifecycle import living, then
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import named_files, read_table, read_until

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

MESSAGES = [*session(5), update(7, a=1), update(8, b=1)]
ROWS = folded([(offset, "s", value) for offset, value in enumerate(MESSAGES)])


class Made(msgspec.Struct, frozen=True):
    """A stream that has read all of a topic, in eight batches."""

    runs: LocalRuns
    topic: str


@pytest.fixture(scope="module")
def original(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The stream, made once; tests only copy it."""
    feed = Feed(broker.bootstrap_servers, f"repaired_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("original"))
    topic = feed.create("values")
    feed.send(topic, MESSAGES)
    runs.with_limits(Limits(batch_messages=1)).run()
    return Made(runs, topic)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A copy of the stream that a test may damage."""
    shutil.copytree(original.runs.root / "tables", tmp_path / "tables")
    return Made(dataclasses.replace(original.runs, root=tmp_path), original.topic)


def conditions(found: Repair) -> dict[str, str]:
    return {check.check: check.condition for check in found.checks if check.condition != "ok"}


def newest(table: Path) -> Path:
    version = find_newest_version(table)
    assert version is not None
    return delta_log.make_entry_path(table, version)


def drop_entries(table: Path, count: int) -> None:
    """Delete the newest log entries, like an old copy or a power loss."""
    for _ in range(count):
        newest(table).unlink()


def test_a_whole_stream_has_nothing_to_mend(made: Made) -> None:
    found = repair_stream(made.runs.folders, apply=False)
    assert (found.whole, len(found.checks), conditions(found)) == (True, 9, {})


def cuts(entry: bytes) -> list[int]:
    """Return lengths of cut entries: empty, within a line, and after each line."""
    lines = [n + 1 for n, byte in enumerate(entry) if byte == ord("\n")]
    return [0, 1, len(entry) // 3, len(entry) - 2, *lines]


def test_every_cut_of_the_newest_entry_is_seen_and_a_whole_one_is_not(made: Made) -> None:
    for table in (made.runs.folders.table, made.runs.folders.ledger):
        entry = newest(table)
        whole = newest(table).read_bytes()
        for length in cuts(whole):
            entry.write_bytes(whole[:length])
            assert find_torn_version(table) == int(entry.stem), length
        entry.write_bytes(whole)
        assert find_torn_version(table) is None


def test_a_cut_entry_that_nobody_built_on_is_set_aside_and_the_stream_goes_on_exactly(made: Made) -> None:
    drop_entries(made.runs.folders.ledger, 1)  # its commit would have followed
    newest(made.runs.folders.table).write_bytes(b'{"commitInfo":{"time')
    assert conditions(repair_stream(made.runs.folders, apply=False)) == {
        "newest entry of table/_delta_log": "repairable"
    }

    found = repair_stream(made.runs.folders, apply=True)
    assert (found.whole, conditions(found)) == (True, {"newest entry of table/_delta_log": "repaired"})
    assert len(list((made.runs.folders.control / "set-aside").iterdir())) == 1
    made.runs.run()
    assert (made.runs.rows(made.topic), read_until(made.runs.folders.ledger, made.topic)) == (ROWS, len(MESSAGES))


def test_a_batch_whose_entry_is_empty_is_read_again_from_kafka(made: Made) -> None:
    newest(made.runs.folders.table).write_bytes(b"")
    with pytest.raises(TableError, match=r"\.json is empty or cut"):
        made.runs.run()
    with pytest.raises(TableError, match=r"\.json is empty or cut"):
        read_status(made.runs.handle)
    found = repair_stream(made.runs.folders, apply=True)
    assert conditions(found) == {"newest entry of table/_delta_log": "repaired", "ledger": "repaired"}
    made.runs.run()
    assert (made.runs.rows(made.topic), read_until(made.runs.folders.ledger, made.topic)) == (ROWS, len(MESSAGES))
    report = verify_stream(made.runs.stream, made.runs.folders, made.runs.settings.kafka)
    assert report.status is InvariantStatus.PROVEN


@pytest.mark.parametrize("missing", [1, 3])
def test_a_ledger_that_is_behind_is_brought_forward_from_the_log_of_the_table(made: Made, missing: int) -> None:
    before = read_table(made.runs.folders.ledger).to_pylist()
    drop_entries(made.runs.folders.ledger, missing)
    assert conditions(repair_stream(made.runs.folders, apply=False)) == {"ledger": "repairable"}
    assert conditions(repair_stream(made.runs.folders, apply=True)) == {"ledger": "repaired"}
    assert before == read_table(made.runs.folders.ledger).to_pylist()


def test_a_cut_entry_of_the_ledger_is_set_aside_and_written_again(made: Made) -> None:
    before = read_table(made.runs.folders.ledger).to_pylist()
    newest(made.runs.folders.ledger).write_bytes(b"{")
    assert conditions(repair_stream(made.runs.folders, apply=True)) == {
        "newest entry of ledger/_delta_log": "repaired",
        "ledger": "repaired",
    }
    assert before == read_table(made.runs.folders.ledger).to_pylist()


def test_a_ledger_ahead_of_the_table_says_that_the_table_lost_entries(made: Made) -> None:
    drop_entries(made.runs.folders.table, 2)
    found = repair_stream(made.runs.folders, apply=True)
    assert conditions(found) == {"ledger": "broken"}


def test_a_ledger_that_is_gone_or_damaged_in_the_middle_is_said_and_left_as_it_is(made: Made) -> None:
    middle = delta_log.make_entry_path(made.runs.folders.ledger, 3)
    middle.write_bytes(b'{"commitInfo":')
    assert conditions(repair_stream(made.runs.folders, apply=True)) == {"logs": "broken"}
    shutil.rmtree(made.runs.folders.ledger)
    assert conditions(repair_stream(made.runs.folders, apply=True)) == {"newest entry of ledger/_delta_log": "broken"}


def test_a_file_that_is_gone_is_named_and_cannot_be_made_again(made: Made) -> None:
    gone = named_files(made.runs.folders.table)[0]
    (made.runs.folders.table / gone).unlink()
    found = repair_stream(made.runs.folders, apply=True)
    assert conditions(found) == {"files of table": "broken"}
    assert gone in next(check.found for check in found.checks if check.condition == "broken")


def test_a_file_of_the_ledger_that_is_gone_is_named(made: Made) -> None:
    gone = named_files(made.runs.folders.ledger)[0]
    (made.runs.folders.ledger / gone).unlink()
    found = repair_stream(made.runs.folders, apply=True)
    assert conditions(found)["files of ledger"] == "broken"
    assert gone in next(check.found for check in found.checks if check.check == "files of ledger")


@pytest.mark.parametrize("harm", ["gone", "one bit"])
def test_state_is_read_whole_so_that_one_wrong_bit_is_found(made: Made, harm: str) -> None:
    for path in made.runs.folders.state.glob("*.state"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        if harm == "gone":
            path.unlink()
    assert conditions(repair_stream(made.runs.folders, apply=True)) == {"state": "broken"}


def test_a_halt_is_no_damage_and_says_how_to_resume(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), [*session(1), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    found = repair_stream(runs.folders, apply=True)
    assert conditions(found) == {"halt": "broken"}
    assert "lockstep resume adding --skip-session" in found.checks[-1].next_step


def test_nothing_is_mended_beside_a_living_writer(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(1))
    worked = threading.Event()
    with living(runs, then(worked)):
        assert worked.wait(60)
        with pytest.raises(Refused, match="lockstep stop adding"):
            repair_stream(runs.folders, apply=True)


def test_what_never_ran_has_nothing_to_repair(runs: LocalRuns) -> None:
    with pytest.raises(NoTable, match="lockstep start adding"):
        repair_stream(runs.folders, apply=False)
