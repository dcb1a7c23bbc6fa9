"""Every path that discards a state, through a broker: ledger, head and proof count the same losses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from typing_extensions import override

from lockstep import EventTime, FuzzyWindow, LogOnly, NoIntegrity, OnGrowth, Ordered, SessionStart, Strict, Suspend
from lockstep.declare.archive import Archive
from lockstep.features.history.rewind import rewind_stream
from lockstep.integrity.resume_options import FromSnapshot, IntegrityLost, SkipSession
from lockstep.model.state_loss import LossTotal
from lockstep.operations.losses import accept_losses, list_losses
from lockstep.operations.resume import resume_stream
from lockstep.table.commit import NoSuchLoss, OutputLog
from lockstep.table.ledger import read_ledger
from lockstep.verify.verify import verify_stream
from tests.support.feed import ProducerRecord
from tests.support.window_folds import LATENESS, REFUSED, SECOND, Counting, ListFold, Tumbling, Value, a_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.folds.windows import WindowState
    from lockstep.integrity.base import IntegrityClass
    from lockstep.verify.report import VerifyReport
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns
    from tests.support.window_folds import Values

FIRST = SessionStart.FIRST_MESSAGE
FUZZY = FuzzyWindow(lateness=LATENESS, session_start=FIRST)
ORDERED = Ordered(session_start=FIRST, on_growth=OnGrowth.RESTART_SESSIONS)
STRICT = Strict(evidence=LogOnly(), session_start=FIRST)


class Refusing(Tumbling):
    """Refuses one value."""

    @override
    def add(self, value: list[int], message: Value) -> list[int]:
        if message.v == REFUSED:
            raise ValueError("refused")
        return super().add(value, message)


class Unsure(Refusing):
    """Cannot count the pending messages of a state."""

    @override
    def pending(self, state: WindowState[list[int]]) -> int:
        raise ArithmeticError("nobody knows")


class FailingAtCount(Counting):
    """Cannot end a session; its windows do not close by time."""

    @override
    def on_end(self, state: WindowState[list[int]]) -> Iterable[Values]:
        raise ArithmeticError("no end")


class Case:
    """A stream of windows with its topic."""

    def __init__(self, feed: Feed, runs: LocalRuns, integrity: IntegrityClass, fold: ListFold | None = None) -> None:
        self.feed = feed
        self.topic = feed.create("windows")
        stream = a_stream(fold or Refusing(), integrity, pattern=feed.pattern)
        self.runs = runs.of(replace(stream, event_time=EventTime(session_idle=1_000 * SECOND)))

    def send(self, *messages: tuple[str, int, int] | bytes, partition: int = 0) -> None:
        """Send (session, second, value), or bytes unchanged."""
        records = [
            ProducerRecord("x", each)
            if isinstance(each, bytes)
            else ProducerRecord(each[0], msgspec.json.encode(Value(each[1], each[2])))
            for each in messages
        ]
        self.feed.append(self.topic, records, partition)

    def verify(self) -> VerifyReport:
        """Return the report of the proof, which finds no violation."""
        report = verify_stream(self.runs.stream, self.runs.folders, self.runs.settings.kafka)
        assert report.violations == ()
        return report

    def check(self, sessions: int, messages: int, cause: str, *, accepted: bool = False) -> None:
        """Check that ledger, head, list and proof count the same; the proof reports the loss until it is accepted."""
        rows = [loss for row in read_ledger(self.runs.folders.ledger) for loss in row.losses]
        assert {loss.cause for loss in rows} == {cause}
        assert (sum(loss.sessions for loss in rows), sum(loss.messages or 0 for loss in rows)) == (sessions, messages)
        assert {loss.is_accepted for loss in rows} == {accepted}
        total = LossTotal(sessions, messages)
        open_ = LossTotal() if accepted else LossTotal(sessions, messages)
        lost = OutputLog(self.runs.folders.table).base().head.lost
        assert (lost.total, lost.open) == (total, open_)
        report = self.verify()
        assert (report.losses.sessions, report.losses.messages) == (sessions, messages)
        assert (report.counts["lost_sessions"], report.counts["lost_messages"]) == (sessions, messages)
        assert report.status.value == ("proven" if accepted else "states lost")
        if accepted:
            return
        assert (report.losses.open_sessions, report.losses.open_messages) == (sessions, messages)
        shown = list_losses(self.runs.folders)
        assert sum(each.sessions for each in shown.losses) == sessions
        with pytest.raises(NoSuchLoss, match=f"the newest loss is that of batch {shown.newest}"):
            accept_losses(self.runs.folders, shown.newest - 1, who="ann", why="seen")
        assert not accept_losses(self.runs.folders, shown.newest, who="ann", why="seen").open
        assert self.verify().status.value == "proven"


BEGUN = (("a", 1, 1), ("a", 2, 1), ("b", 3, 1))


def test_a_message_that_the_fold_refuses(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, FUZZY)
    case.send(*BEGUN)
    case.runs.run()
    case.send(("a", 3, REFUSED), ("a", 4, 1), ("b", 5, 1))
    case.runs.run()
    case.check(1, 2, "transform raised")


def test_a_policy_that_accepts_it(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, replace(FUZZY, on_violation=Suspend(accept_loss=True)))
    case.send(*BEGUN, ("a", 3, REFUSED))
    case.runs.run()
    case.check(1, 2, "transform raised", accepted=True)


def test_garbage_under_a_strict_class_that_suspends(feed: Feed, runs: LocalRuns) -> None:
    """The second garbage message affects only the session that has restarted."""
    case = Case(feed, runs, replace(STRICT, on_violation=Suspend()))
    case.send(*BEGUN)
    case.runs.run()
    case.send(b"{", ("a", 4, 1), b"{", b"{")
    case.runs.run()
    case.send(b"{", ("b", 5, 1))
    case.runs.run()
    case.check(3, 4, "undecodable")


def test_expired_messages(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, ORDERED)
    case.send(*BEGUN)
    case.runs.run()
    case.send(("a", 4, 1), ("a", 5, 1))
    feed.expire(case.topic, 4)
    case.runs.run()
    case.check(2, 3, "expired unread")


def test_a_topic_that_grows_without_another_message(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, ORDERED)
    case.send(*BEGUN)
    case.runs.run()
    feed.grow(case.topic, 2)
    case.runs.run()
    case.check(2, 3, "partitions grew")


@pytest.mark.parametrize("integrity", [ORDERED, NoIntegrity()], ids=["ordered", "none"])
def test_a_topic_that_is_made_again(feed: Feed, runs: LocalRuns, integrity: IntegrityClass) -> None:
    case = Case(feed, runs, integrity)
    case.runs = case.runs.of(replace(case.runs.stream, archive=Archive()))  # the proof folds the old topic again
    case.send(*BEGUN)
    case.runs.run()
    before = str(case.runs.handle.require_head().batch)
    feed.delete(case.topic)
    feed.create_again("windows")
    case.send(("a", 4, 1))
    case.runs.run()
    rows = [loss for row in read_ledger(case.runs.folders.ledger) for loss in row.losses]
    assert [(loss.cause, loss.sessions, loss.messages) for loss in rows] == [("topic re-created", 2, 3)]
    assert case.verify().losses.open_messages == 3
    rewind_stream(case.runs.handle, before, who="ann", why="a test")  # the topic and its states stay gone
    case.runs.run()
    assert case.runs.handle.require_head().lost.open == LossTotal(2, 3)
    assert case.verify().losses.open_messages == 3


def test_a_topic_that_is_deleted_and_forgotten_counts_once(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, ORDERED)
    feed.create("other")
    case.send(*BEGUN)
    case.runs.run()
    feed.delete(case.topic)
    case.runs.run()
    case.runs.tuned(forget_seconds=0.0, lifecycle_seconds=0.0).run()
    rows = [loss for row in read_ledger(case.runs.folders.ledger) for loss in row.losses]
    assert [(loss.cause, loss.sessions, loss.messages) for loss in rows] == [("topic gone", 2, 3)]
    assert "forgotten" in {row.lifecycle for row in read_ledger(case.runs.folders.ledger)}
    assert case.verify().losses.open_messages == 3


def test_from_snapshot_accepts_what_it_costs(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, STRICT)
    case.send(*BEGUN)
    case.runs.run()
    case.send(b"{", ("a", 4, 1))
    with pytest.raises(IntegrityLost):
        case.runs.run()
    resume_stream(case.runs.folders, why="garbage", who="ann", accepted=[FromSnapshot(case.topic, 0)])
    case.runs.run()
    case.check(2, 3, "from-snapshot", accepted=True)


def test_a_skipped_session_loses_its_state_alone(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, STRICT)
    case.send(*BEGUN)
    case.runs.run()
    case.send(("a", 4, REFUSED), ("b", 5, 1))
    with pytest.raises(IntegrityLost):
        case.runs.run()
    resume_stream(case.runs.folders, why="refused", who="ann", accepted=[SkipSession(case.topic, 0, "a")])
    case.runs.run()
    case.send(("a", 6, 1), ("b", 7, 1))
    case.runs.run()
    case.check(1, 2, "skip-session", accepted=True)


def test_a_hook_that_raises_is_named_and_stops_nothing(feed: Feed, runs: LocalRuns) -> None:
    case = Case(feed, runs, FUZZY, Unsure())
    case.send(*BEGUN, ("a", 3, REFUSED), ("a", 4, 1))
    case.runs.run()
    case.check(1, 0, "transform raised")
    (loss,) = [loss for row in read_ledger(case.runs.folders.ledger) for loss in row.losses]
    assert re.fullmatch(r"pending raised ArithmeticError at test_through_the_broker\.py:\d+", loss.detail)


def test_an_idle_session_that_cannot_end_halts_a_strict_stream_until_it_is_skipped(feed: Feed, runs: LocalRuns) -> None:
    """Each halt names a session; the next run continues behind it."""
    case = Case(feed, runs, STRICT, FailingAtCount())
    case.send(*BEGUN, ("end", 5_000, 1), ("end", 5_001, 1))
    halted = []
    for _ in range(2):
        with pytest.raises(IntegrityLost) as lost:
            case.runs.run()
        (finding,) = lost.value.findings
        halted.append((finding.cause, finding.session))
        skipped = SkipSession(case.topic, 0, finding.session or "")
        resume_stream(case.runs.folders, why="no end", who="ann", accepted=[skipped])
    case.runs.run()
    assert halted == [("timer raised", "a"), ("timer raised", "b")]
    case.check(2, 3, "skip-session", accepted=True)


@pytest.mark.parametrize("integrity", [FUZZY, NoIntegrity()], ids=["window", "none"])
def test_an_idle_session_that_cannot_end_is_lost(feed: Feed, runs: LocalRuns, integrity: IntegrityClass) -> None:
    case = Case(feed, runs, integrity, FailingAtCount())
    case.send(*BEGUN, ("end", 5_000, 1), ("end", 5_001, 1))
    case.runs.run()
    case.check(2, 3, "on_end raised")
