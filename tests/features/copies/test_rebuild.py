"""Lost state files are rebuilt unchanged from an older state and Kafka, or the refusal names its reason."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Limits, Ordered
from lockstep.engine.executor.limits import EngineLimit
from lockstep.features.copies.rebuild import prepare_rebuild, rebuild_state
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import rewind_stream
from lockstep.features.history.savepoint import make_savepoint
from lockstep.features.history.shadow import begin_shadow
from lockstep.integrity.resume_options import AcceptLoss, IntegrityLost, SkipSession
from lockstep.operations.inspect.state import find_state_version, read_segments
from lockstep.operations.plan_frame import Refused
from lockstep.operations.repair import repair_stream
from lockstep.operations.resume import resume_stream
from lockstep.progress import send_progress
from lockstep.storage.local import LocalPendingFile
from lockstep.table import ledger
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import Adding, Panel, adding
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import LocalRuns
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lockstep import Record
    from lockstep.features.localdev.broker import Broker
    from lockstep.table.ledger import LedgerRow
    from tests.support.adding_stream import Reading, Snapshot, Update

ROOT = Path(__file__).parents[3]
MESSAGES = [*session(5), *(update(number, a=1) for number in range(7, 31))]


class WrongState(Adding):
    """The same fold with another state."""

    def on_snapshot(self, message: Snapshot | Update, record: Record, previous: Panel | None) -> Panel:
        """Keep all values and add one."""
        return Panel({**message.values, "more": 1})

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Emit one row per value."""
        state.values["more"] = message.seq
        return super().on_update(state, message, record)


class Made(msgspec.Struct, frozen=True):
    """A stream with one message per batch and one unread message."""

    feed: Feed
    runs: LocalRuns
    topic: str

    @property
    def files(self) -> dict[str, bytes]:
        """Return its state files."""
        return {path.name: path.read_bytes() for path in self.runs.folders.state.iterdir()}

    def assert_goes_on(self) -> None:
        assert repair_stream(self.runs.folders, apply=False).whole
        self.runs.run()
        values = [*MESSAGES, update(31, a=1)]
        assert folded([(at, "s", value) for at, value in enumerate(values)]) == self.runs.rows(self.topic)
        report = verify_stream(self.runs.stream, self.runs.folders, self.runs.settings.kafka)
        assert report.status.value == "proven", (report.violations, report.notes)


@pytest.fixture(scope="module")
def original(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A stream made once; no test changes it."""
    feed = Feed(broker.bootstrap_servers, f"lost_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("original"))
    topic = feed.create("values")
    feed.send(topic, MESSAGES)
    runs.with_limits(Limits(batch_messages=1)).run()
    feed.send(topic, [update(31, a=1)])
    return Made(feed, runs, topic)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copytree(original.runs.root / "tables", tmp_path / "tables")
    return msgspec.structs.replace(original, runs=dataclasses.replace(original.runs, root=tmp_path))


def harm_newest(made: Made) -> None:
    """Flip a bit in the newest state file."""
    rows = [row for row in ledger.read_ledger(made.runs.folders.ledger) if row.state_bytes]
    path = made.runs.folders.state / str(rows[-1].state_file)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def harm_chain(made: Made) -> None:
    """Delete every second file of the newest state, its base included."""
    rows = [row for row in ledger.read_ledger(made.runs.folders.ledger) if row.state_bytes]
    for segment in [*read_segments(find_state_version(rows[-1]), made.runs.folders.state)][::2]:
        (made.runs.folders.state / segment.header.file).unlink()


def harm_all(made: Made) -> None:
    shutil.rmtree(made.runs.folders.state)
    made.runs.folders.state.mkdir()


def test_only_the_rows_of_damaged_partitions_are_held(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost file damages many partitions: the ledger is read once for all, and never held in memory as a whole."""
    harm_newest(made)
    passes = list[object]()

    def iterate_noted(folder: Path) -> Iterator[list[LedgerRow]]:
        passes.append(folder)
        return iterate(folder)

    iterate = ledger.iterate_rows
    monkeypatch.setattr(ledger, "iterate_rows", iterate_noted)
    plan = prepare_rebuild(made.runs.handle).plan
    assert [(each.topic, each.refused) for each in plan.partitions] == [(made.topic, "")]
    assert len(passes) == 1


@pytest.mark.fault("F17")
@pytest.mark.parametrize("harm", first_usual(1, [harm_newest, harm_chain, harm_all]))
def test_lost_state_comes_back_byte_by_byte_and_the_stream_goes_on(made: Made, harm: Callable[[Made], None]) -> None:
    before = made.files
    harm(made)
    planned = prepare_rebuild(made.runs.handle).plan
    assert planned.partitions[0].refused == ""
    noted = list[tuple[str, int, int]]()
    with send_progress(lambda *progress: noted.append(progress)):
        done = rebuild_state(made.runs.handle)
    assert ("rebuilding partitions", 1, 1) in noted
    assert done.files
    assert done.partitions == planned.partitions
    assert {name: before[name] for name in done.files} == {name: made.files[name] for name in done.files}
    assert rebuild_state(made.runs.handle).partitions == ()
    made.assert_goes_on()


@pytest.mark.fault("F17")
def test_a_rewind_between_question_and_answer_refuses_the_rebuild_by_name(made: Made) -> None:
    """Its files may belong to batches that no longer count, or contain an erased session."""
    harm_newest(made)
    before = made.files
    prepared = prepare_rebuild(made.runs.handle)
    rewind_stream(made.runs.handle, "3", who="ann", why="another way out")
    with pytest.raises(Refused, match="the plan has changed since it was shown: the stream was rewound"):
        prepared.commit()
    assert {name: made.files[name] for name in before} == before
    assert prepare_rebuild(made.runs.handle).plan.is_due is False


@pytest.mark.fault("F17")
def test_other_code_than_then_rebuilds_nothing(made: Made) -> None:
    harm_newest(made)
    before = made.files
    other = made.runs.of(adding(made.feed.pattern, transform=WrongState()))
    with pytest.raises(Refused, match="the code is not that of then"):
        rebuild_state(other.handle)
    assert made.files == before


@pytest.mark.fault("F17")
def test_state_of_a_savepoint_is_rebuilt_too(made: Made) -> None:
    make_savepoint(made.runs.folders, "early", who="ann", why="a test", at="3")
    for path in made.runs.folders.state.glob("*-b[123]-*"):
        path.unlink()
    (damaged,) = {each.to_batch for each in rebuild_state(made.runs.handle).partitions} - {len(MESSAGES)}
    assert damaged == 3
    assert rebuild_state(made.runs.handle).partitions == ()


@pytest.mark.fault("F17")
def test_a_first_batch_that_a_message_suspended_is_folded_as_it_was(feed: Feed, runs: LocalRuns) -> None:
    ordered = runs.of(adding(feed.pattern, Ordered()))
    topic = feed.create("values")
    feed.send(topic, [*session(3), b"{", *session(2, first=9)])
    ordered.run()
    shutil.rmtree(ordered.folders.state)
    rebuild_state(ordered.handle)
    assert verify_stream(ordered.stream, ordered.folders, ordered.settings.kafka).status is InvariantStatus.PROVEN


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_an_operator_gave_up_is_not_folded_again(feed: Feed, runs: LocalRuns, *, gives_up: bool) -> None:
    """Otherwise the message is read again, the fold halts again, and the rebuild reports other code."""
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    feed.send(topic, [update(4, a=1), update(4, a=1), update(5, a=2)])
    with pytest.raises(IntegrityLost):
        runs.run()
    accepted = AcceptLoss(topic, 0, 4, 5) if gives_up else SkipSession(topic, 0, "s")
    resume_stream(runs.folders, why="a test", who="a test", accepted=[accepted])
    runs.run()
    made = Made(feed, runs, topic)
    before = made.files
    harm_all(made)
    rebuild_state(runs.handle)
    assert made.files == before
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN


def test_a_state_that_was_promoted_is_refused_by_name(feed: Feed, runs: LocalRuns) -> None:
    added = runs.of(adding(feed.pattern))
    topic = feed.create("values")
    feed.send(topic, session(3))
    added.run()
    begin_shadow(added.handle, "adding_shadow", "1", code="", who="ann", why="test")
    feed.send(topic, [update(5, a=1)])
    added.run()
    added.of(dataclasses.replace(added.stream, name="adding_shadow")).run()
    promote_shadow(added.handle, "adding_shadow", who="ann", why="test")
    shutil.rmtree(added.folders.state)
    with pytest.raises(Refused, match="has a state without messages"):
        rebuild_state(added.handle)


def test_messages_that_kafka_no_longer_has_refuse_it_by_name(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, MESSAGES)
    runs.with_limits(Limits(batch_messages=8)).run()
    feed.expire(topic, 12)
    shutil.rmtree(runs.folders.state)
    planned = prepare_rebuild(runs.handle).plan
    assert "Kafka has deleted offsets 0 to 11" in planned.partitions[0].refused
    with pytest.raises(Refused, match="Kafka has deleted offsets 0 to 11") as refused:
        rebuild_state(runs.handle)
    assert "lockstep savepoint list adding" in refused.value.next_step


def test_a_rebuild_on_a_full_disk_leaves_nothing_of_what_it_could_not_write(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm_all(made)
    before = set(made.files)

    def finish(self: LocalPendingFile) -> int:
        del self
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(LocalPendingFile, "finish", finish)
        with pytest.raises(EngineLimit, match="lacks disk space"):
            rebuild_state(made.runs.handle)
    assert set(made.files) == before
    rebuild_state(made.runs.handle)
    made.assert_goes_on()


@pytest.mark.slow
@pytest.mark.fault("F17")
@pytest.mark.parametrize("moves", [0, 1, 3])
def test_a_rebuild_that_is_killed_is_done_again(made: Made, moves: int) -> None:
    before = made.files
    harm_all(made)
    arguments = [made.runs.bootstrap_servers, str(made.runs.root), made.feed.pattern, str(moves)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert all(content == before[name] for name, content in made.files.items() if name in before)
    rebuild_state(made.runs.handle)
    made.assert_goes_on()


KILLED = """
import os, signal, sys
from pathlib import Path
from lockstep.operations.inspect.state import find_state_version, read_segments
from lockstep.features.history.promote import promote_shadow
from lockstep.features.copies.rebuild import rebuild_state
from lockstep.storage import LocalStorage
from tests.support.adding_stream import adding
from tests.support.local_runs import LocalRuns
move, left = LocalStorage.move, [int(sys.argv[4])]
def move_and_die(self, path, target):
    if target.suffix == ".state":
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
    move(self, path, target)
LocalStorage.move = move_and_die
rebuild_state(LocalRuns(adding(sys.argv[3]), sys.argv[1], Path(sys.argv[2])).handle)
"""
