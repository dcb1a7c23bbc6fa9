"""Rows of other code than the proof's may differ from its fold: the proof names the first batch of today's code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep import Limits
from lockstep.operations.inspect.history import read_history
from lockstep.table.commit import OutputLog
from lockstep.table.head import FoldCode
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import Adding, Reading, adding
from tests.support.feed import session, update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep import Record
    from lockstep.verify.report import VerifyReport
    from tests.support.adding_stream import Panel, Snapshot, Update
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


class Negating(Adding):
    """Another fold with the same state."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Yield a row for each value, negated."""
        for row in super().on_update(state, message, record):
            yield Reading(row.name, -row.value, row.total)


class Scaling(Adding):
    """A fold with a factor, which remembers the keys of its messages."""

    def __init__(self, factor: int) -> None:
        self.factor, self.met = factor, set[str]()

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Yield a row for each value, times the factor."""
        self.met.add(record.key_text)
        for row in super().on_update(state, message, record):
            yield Reading(row.name, self.factor * row.value, row.total)


def proof_of(runs: LocalRuns) -> VerifyReport:
    return verify_stream(runs.stream, runs.folders, runs.settings.kafka)


def code_of(runs: LocalRuns) -> FoldCode | None:
    return OutputLog(runs.folders.table).base().head.code


def causes(runs: LocalRuns) -> list[str]:
    return [each.detail for each in read_history(runs.folders, 50).events if each.event == "new writer"]


def test_a_proof_after_new_code_names_the_batch_from_which_on_it_wrote(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.run()
    first = code_of(runs)
    assert first is not None
    assert first.first_batch == 1
    assert proof_of(runs).status is InvariantStatus.PROVEN

    newer = runs.of(adding(feed.pattern, transform=Negating()))
    unread = proof_of(newer)
    assert unread.status is InvariantStatus.VIOLATED
    assert unread.next_step.startswith("the code here is not that of the last run, so rows may differ because of it")

    feed.send(topic, [update(4, a=1)])
    newer.run()
    code = code_of(newer)
    assert code is not None
    assert (code.first_batch, code.digest == first.digest) == (2, False)
    found = proof_of(newer)
    assert found.status is InvariantStatus.VIOLATED
    hint = "today's code wrote from batch 2 on: rows of batches before it may differ because of it. Else keep all"
    assert found.next_step.startswith(hint)

    newer.run()
    assert code_of(newer) == code
    assert [cause.endswith("; new code") for cause in causes(newer)] == [False, True, False]


def test_another_instance_and_a_smaller_limit_are_named_as_another_declaration(feed: Feed, runs: LocalRuns) -> None:
    """Another argument of an unchanged module counts; values that the fold collects during the proof do not."""
    topic = feed.create("values")
    feed.send(topic, session(2))
    runs.of(adding(feed.pattern, transform=Scaling(1))).run()
    doubled = runs.of(adding(feed.pattern, transform=Scaling(2)))
    feed.send(topic, [update(4, a=1, **{"b" * 1_000: 1})])
    doubled.run()
    hint = "today's code wrote from batch 2 on: rows of batches before it may differ because of it. Else keep all"
    assert proof_of(doubled).next_step.startswith(hint)
    limited = proof_of(doubled.with_limits(Limits(message_bytes=500)))
    assert limited.status is InvariantStatus.VIOLATED
    assert limited.next_step.startswith("the code here is not that of the last run")
