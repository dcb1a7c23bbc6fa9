"""Bad input under Strict: earlier messages are committed, other partitions are read, the halt names the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lockstep.integrity import resume_options
from lockstep.integrity.resume_options import IntegrityLost, StreamHalted
from lockstep.operations.resume import resume_stream
from tests.support.adding_stream import BY_CHECKSUM, POISON, Mended, adding
from tests.support.feed import folded, session, update
from tests.support.plain_reader import entries, heads, read_until

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

BEFORE = session(3)
"""Offsets 0 to 3 of the session "s", sequences 1 to 4; the bad message is offset 4."""


@dataclass(frozen=True)
class Bad:
    """A bad message and the expected finding."""

    value: bytes | None
    cause: str
    expected: str | None = None
    found: str | None = None
    detail: str = ""
    key: str = "s"
    option: str = "--skip-session {topic}/0/{key}"
    integrity: IntegrityClass | None = None


GIVEN_UP = "--accept-loss {topic}/0@4"
CASES = {
    "undecodable": Bad(
        b'{"type":"update"', "undecodable", "a message of the stream", "Input data was truncated", option=GIVEN_UP
    ),
    "null": Bad(None, "undecodable", "a message of the stream", "no value (null)", option=GIVEN_UP),
    "unknown-session": Bad(
        update(1, a=1), "unknown session", "a snapshot first", "update of a session without snapshot", key="new"
    ),
    "gap": Bad(update(7, a=1), "gap", "5", "7, missing 5 to 6"),
    "repeat": Bad(update(4, a=1), "repeat", "5", "4", option=GIVEN_UP),
    "raises": Bad(update(5, a=1, b=POISON, c=3), "transform raised", detail="ZeroDivisionError: poison"),
    "checksum": Bad(update(5, 99, a=1), "checksum", "4", "99", integrity=BY_CHECKSUM),
    "unfit-row": Bad(update(5, a=2**64), "value not storable", detail="RowRejected: "),
}


@pytest.mark.parametrize("bad", CASES.values(), ids=CASES)
def test_a_bad_message_halts_its_partition_alone_after_what_precedes_it_and_a_restart_reads_no_further(
    feed: Feed, runs: LocalRuns, bad: Bad
) -> None:
    runs = runs.of(adding(feed.pattern, bad.integrity))
    topic = fed(feed, bad)
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    (finding,) = lost.value.findings
    assert (finding.topic, finding.partition, finding.offset, finding.until) == (topic, 0, 4, 5)
    assert (finding.cause, finding.session) == (bad.cause, bad.key)
    assert (finding.expected, finding.found) == (bad.expected, bad.found)
    assert finding.detail.startswith(bad.detail)
    assert_said(lost.value, topic, bad)
    assert_halted(runs, topic, bad)
    assert_refused(runs, lost.value)


def test_mended_code_takes_the_message_whose_changes_were_undone(feed: Feed, runs: LocalRuns) -> None:
    topic = fed(feed, CASES["raises"])
    with pytest.raises(IntegrityLost):
        runs.run()
    resume_stream(runs.folders, why="the fold is mended", who="test", accepted=[resume_options.Fixed()])
    runs.of(adding(feed.pattern, transform=Mended())).run()
    values = [*BEFORE, update(5, a=1, b=POISON, c=3), update(6, a=1)]
    assert folded([(offset, "s", value) for offset, value in enumerate(values)]) == runs.rows(topic)
    assert read_until(runs.folders.ledger, topic) == 6


def test_an_accepted_loss_is_passed_over_and_kept_in_the_ledger(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [*BEFORE, b"garbage", update(5, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    resume_stream(runs.folders, why="a test message", who="test", accepted=[resume_options.AcceptLoss(topic, 0, 4, 5)])
    runs.run()
    values = [(offset, "s", value) for offset, value in enumerate(BEFORE)]
    assert folded([*values, (5, "s", update(5, a=1))]) == runs.rows(topic)


def test_a_violation_in_a_later_batch_keeps_the_batches_before(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, BEFORE)
    runs.run()
    feed.send(topic, [update(5, a=1), update(9, a=1), update(10, a=1)])
    with pytest.raises(IntegrityLost, match=r"gap at .* offset 5, session 's': expected 6, found 9, missing 6 to 8"):
        runs.run()
    assert folded([(n, "s", value) for n, value in enumerate([*BEFORE, update(5, a=1)])]) == runs.rows(topic)


def fed(feed: Feed, bad: Bad) -> str:
    """Create a topic of two partitions: the first with the bad message and one message after it, the second valid."""
    topic = feed.create("values", partitions=2)
    feed.send(topic, BEFORE)
    feed.send(topic, [bad.value], key=bad.key)
    feed.send(topic, [update(6, a=1)])
    feed.send(topic, session(9), key="other", partition=1)
    return topic


def assert_said(lost: IntegrityLost, topic: str, bad: Bad) -> None:
    """Assert that the error names the place and the next command."""
    assert f"at {topic}/0 offset 4, session " in str(lost)
    assert f"lockstep resume adding {bad.option.format(topic=topic, key=bad.key)} --why" in lost.next_step


def assert_halted(runs: LocalRuns, topic: str, bad: Bad) -> None:
    """Assert that earlier messages and the other partition are committed, and the head has the evidence."""
    head = heads(runs.folders.table)[-1]
    assert (head["desired"], head["findings"][0]["cause"]) == ("halted", bad.cause)
    assert folded([(offset, "s", value) for offset, value in enumerate(BEFORE)]) == runs.rows(topic, 0)
    assert folded([(offset, "other", value) for offset, value in enumerate(session(9))]) == runs.rows(topic, 1)
    assert (read_until(runs.folders.ledger, topic, 0), read_until(runs.folders.ledger, topic, 1)) == (4, 10)


def assert_refused(runs: LocalRuns, lost: IntegrityLost) -> None:
    """Assert that a restart repeats the findings and commits nothing, not even a claim."""
    log = entries(runs.folders.table)
    with pytest.raises(StreamHalted) as halted:
        runs.run()
    assert halted.value.findings == lost.findings
    assert entries(runs.folders.table) == log
