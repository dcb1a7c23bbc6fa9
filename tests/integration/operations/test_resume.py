"""A halted stream continues by the options of its printed command, with correct rows."""

from __future__ import annotations

import dataclasses
import shlex

import msgspec
import pytest
from deltalake import DeltaTable

from lockstep import Envelope, Kind, Limits, Link, Linked, Once, Record, Strict
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.resumption import PositionMismatch
from lockstep.integrity import resume_options
from lockstep.integrity.resume_options import (
    AcceptLoss,
    Fixed,
    FromSnapshot,
    SkipSession,
    StreamHalted,
    make_resume_command,
    suggest_option,
)
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.operations.resume import NotHalted, UnansweredFindings, plan_resume, resume_stream
from lockstep.rules import InRange, OnViolation
from lockstep.table.ledger import read_ledger
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.adding_stream import BY_CHECKSUM, POISON, Adding, Snapshot, Update, adding
from tests.support.feed import Feed, ProducerRecord, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.resuming import TWO, WHO, WHY, applied, halted, kept, noted, resumed, send, send_all


def test_a_skipped_session_waits_for_its_snapshot_while_the_rest_of_its_partition_goes_on(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(7, a=1)), ("t", update(3, b=1)), ("s", update(8, a=1)), ("s", snapshot(20, a=5))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert suggest_option(finding) == SkipSession(topic, 0, "s")
    (row,) = resumed(runs, suggest_option(finding))
    assert noted([row]) == [("skip-session", "gap", 4, 5, "s")]
    assert [(each.session, each.before) for each in row.suspended_sessions] == [("s", 5)]
    more = [("s", update(21, a=1)), ("t", update(4, b=1))]
    send(feed, topic, *more)
    assert runs.with_limits(Limits(batch_messages=1)).run() is RunOutcome.ENDED
    assert applied([*sent, *more], 0, 1, 2, 3, 5, 7, 8, 9) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 4): "suspended", (topic, 0, 6): "suspended"}
    assert read_ledger(runs.folders.ledger)[-1].suspended_sessions == []
    send(feed, topic, ("s", update(30, a=1)))
    (again,) = halted(runs)  # the promise holds for it as before
    assert (again.cause, again.session) == ("gap", "s")


def test_a_session_that_was_never_known_can_be_skipped_from_the_first_offset(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [("s", update(1, a=1)), ("s", update(2, a=1)), ("s", snapshot(3, a=1)), ("s", update(4, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert noted(resumed(runs, suggest_option(finding))) == [("skip-session", "unknown session", 0, 1, "s")]
    runs.run()
    assert applied(sent, 2, 3) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 0): "suspended", (topic, 0, 1): "suspended"}


def test_a_message_on_which_the_fold_fails_is_kept_whole_when_its_session_is_skipped(
    feed: Feed, runs: LocalRuns
) -> None:
    bad = update(3, a=1, b=POISON)
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, BY_CHECKSUM))
    sent = [*TWO, ("s", bad), ("t", update(3, b=1)), ("s", update(4, a=1)), ("s", snapshot(20, a=5))]
    send(feed, topic, *sent, ("s", update(21, a=1)))
    (finding,) = halted(runs)
    assert noted(resumed(runs, suggest_option(finding))) == [("skip-session", "transform raised", 4, 5, "s")]
    runs.run()
    assert applied([*sent, ("s", update(21, a=1))], 0, 1, 2, 3, 5, 7, 8) == runs.rows(topic)
    values = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"]) for row in values] == [(4, bad), (6, sent[6][1])]


def test_a_row_that_violates_a_rule_halts_the_stream_and_a_skipped_session_or_another_rule_goes_on(
    feed: Feed, runs: LocalRuns
) -> None:
    """`OnViolation.FAIL`: the halt, both ways to resume, and the proof of the table."""
    topic = feed.create("values")
    plain = runs.stream
    rule = InRange("total", at_most=100, on_violation=OnViolation.FAIL)
    runs = runs.of(dataclasses.replace(plain, rules=[rule]))
    sent = [*TWO, ("s", update(3, a=500)), ("t", update(3, b=1)), ("s", snapshot(20, a=5)), ("s", update(21, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert (finding.offset, finding.session, finding.cause) == (4, "s", rule.name)
    assert (finding.expected, finding.found) == ("total is at most 100", "total = 502")
    assert runs.rows(topic) == applied(sent, 0, 1, 2, 3)[: len(runs.rows(topic))]  # nothing of it is in the table
    assert suggest_option(finding) == SkipSession(topic, 0, "s")
    assert noted(resumed(runs, suggest_option(finding))) == [("skip-session", rule.name, 4, 5, "s")]
    assert runs.run() is RunOutcome.ENDED
    assert applied(sent, 0, 1, 2, 3, 5, 6, 7) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 4): "suspended"}
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN
    send(feed, topic, ("t", update(4, b=200)))
    (again,) = halted(runs)
    assert (again.session, again.cause) == ("t", rule.name)
    fixed = runs.of(plain)
    assert noted(resumed(fixed, Fixed())) == [("fixed", rule.name, 8, 9, None)]
    assert fixed.run() is RunOutcome.ENDED
    assert applied([*sent, ("t", update(4, b=200))], 0, 1, 2, 3, 5, 6, 7, 8) == runs.rows(topic)
    assert verify_stream(plain, runs.folders, runs.settings.kafka).violations == ()


def test_all_sessions_of_a_partition_wait_for_their_snapshots_after_garbage(feed: Feed, runs: LocalRuns) -> None:
    """The garbage's session is unknown; the garbage is kept too, and unknown sessions wait like the others.

    The proof handles a session that was silent since then: "t" is not marked as suspended yet.
    """
    topic = feed.create("values")
    late = [("new", update(1, c=1)), ("s", update(3, a=1)), ("s", snapshot(9, a=5)), ("s", update(10, a=1))]
    sent = [*TWO, ("s", b"\x00garbage"), *late]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert suggest_option(finding) == AcceptLoss(topic, 0, 4, 5)
    (row,) = resumed(runs, FromSnapshot(topic, 0))
    assert (row.until, row.suspended_from) == (4, 5)
    assert noted([row]) == [("from-snapshot", "undecodable", 4, 5, None)]
    assert runs.run() is RunOutcome.ENDED
    assert applied(sent, 0, 1, 2, 3, 7, 8) == runs.rows(topic)
    found = kept(runs)
    assert [found.pop((topic, 0, at)) for at in (4, 5, 6)] == ["undecodable", "unknown session", "suspended"]
    assert verify_stream(runs.stream, runs.folders, runs.settings.kafka).status is InvariantStatus.PROVEN
    send(feed, topic, ("t", update(3, b=1)))
    runs.run()
    assert kept(runs)[(topic, 0, 9)] == "suspended"
    send(feed, topic, ("s", b"garbage again"))
    assert [each.cause for each in halted(runs)] == ["undecodable"]


@pytest.mark.parametrize("batch_messages", [200_000, 60])
def test_a_run_of_garbage_is_one_halt_and_one_resumption(feed: Feed, runs: LocalRuns, batch_messages: int) -> None:
    """The garbage exceeds a burst, has messages of the stream in between, and spans more than one batch."""
    topic = feed.create("values")
    runs = runs.with_limits(Limits(batch_messages=batch_messages))
    garbage: list[tuple[str, bytes]] = [("s", b"\x00garbage")] * 50
    sent = [*TWO, *garbage, ("s", update(3, a=1)), ("s", snapshot(4, a=2)), *garbage, *garbage[:25]]
    sent += [("s", snapshot(9, a=5)), ("t", update(3, b=1)), ("s", update(10, a=1))]
    send_all(feed, topic, sent)
    (finding,) = halted(runs)
    if batch_messages > len(sent):
        assert (finding.offset, finding.until) == (4, 131)
        assert "125 of 130 messages cannot be decoded; scanned up to offset 133" in finding.detail
    else:
        assert (finding.offset, finding.until) == (4, 60)
        assert "54 of 56 messages cannot be decoded; scanned up to offset 59" in finding.detail
    assert suggest_option(finding) == AcceptLoss(topic, 0, finding.offset, finding.until)
    # The operator knows the end of the garbage.
    (row,) = resumed(runs, FromSnapshot.parse(f"{topic}/0@4-131"))
    assert (row.until, row.suspended_from) == (4, 131)
    assert noted([row]) == [("from-snapshot", "undecodable", 4, 131, None)]
    assert runs.run() is RunOutcome.ENDED
    assert applied(sent, 0, 1, 2, 3, 131, 133) == runs.rows(topic)
    found = kept(runs)
    assert [found[topic, 0, at] for at in (54, 55, 132)] == ["suspended"] * 3
    assert sum(cause == "undecodable" for cause in found.values()) == 125


def test_a_part_of_a_run_of_garbage_can_be_passed_over(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*TWO, *([("s", b"\x00garbage")] * 3), ("s", update(3, a=1))]
    send_all(feed, topic, sent)
    (finding,) = halted(runs)
    assert (finding.offset, finding.until) == (4, 7)
    resumed(runs, AcceptLoss(topic, 0, 4, 5))
    assert [(each.offset, each.until) for each in halted(runs)] == [(5, 7)]
    resumed(runs, AcceptLoss(topic, 0, 5, 7))
    runs.run()
    assert applied(sent, 0, 1, 2, 3, 7) == runs.rows(topic)


def test_a_repeated_message_is_passed_over_alone(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(2, a=9)), ("s", update(3, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert suggest_option(finding) == AcceptLoss(topic, 0, 4, 5)
    (row,) = resumed(runs, suggest_option(finding))
    assert (row.start, row.until, row.is_loss) == (4, 5, True)
    assert [(each.kind, each.who, each.why) for each in row.accepted] == [("accept-loss", WHO, WHY)]
    runs.run()
    assert applied(sent, 0, 1, 2, 3, 5) == runs.rows(topic)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_session_that_is_unknown_or_cannot_be_written_is_not_proposed_to_be_skipped(
    feed: Feed, runs: LocalRuns, errors: str
) -> None:
    """For a key that is not UTF-8, a command to skip the session would be accepted without effect."""
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, transform=KeyReading(errors)))
    sent: list[tuple[str, bytes]] = [*TWO, ("", update(3, a=1)), ("s", snapshot(3, a=1)), ("s", update(4, a=1))]
    for at, (key, value) in enumerate(sent):
        feed.append(topic, [ProducerRecord(b"\xff" if at == len(TWO) else key, value)])
    (finding,) = halted(runs)
    assert suggest_option(finding) == FromSnapshot(topic, 0)
    resumed(runs, suggest_option(finding))
    assert runs.run() is RunOutcome.ENDED
    assert applied(sent, 0, 1, 2, 3, 5, 6) == runs.rows(topic)
    assert list(kept(runs)) == [(topic, 0, 4)]


@dataclasses.dataclass(frozen=True)
class KeyReading(Adding):
    """Decodes the key with a given error handler."""

    errors: str

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if isinstance(message, Snapshot) else Kind.UPDATE
        return Envelope((record.key or b"").decode(errors=self.errors), kind, sequence=message.seq)


class Linking(Adding):
    """Each message names its predecessor."""

    def envelope(self, message: Snapshot | Update, record: Record) -> Envelope:
        found = super().envelope(message, record)
        return msgspec.structs.replace(found, link=Link(message.seq, previous=message.seq - 1))


def test_a_message_that_is_linked_twice_is_passed_over_alone(feed: Feed, runs: LocalRuns) -> None:
    """It is not a broken link, which would suspend the session until a snapshot that many feeds never send."""
    runs = runs.of(adding(feed.pattern, Strict(evidence=Linked()), Linking()))
    topic = feed.create("values")
    sent = [*TWO, ("s", update(2, a=1)), ("s", update(3, a=1)), ("s", update(6, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding)) == ("repeat", AcceptLoss(topic, 0, 4, 5))
    resumed(runs, suggest_option(finding))
    (finding,) = halted(runs)
    assert (finding.cause, finding.found) == ("gap", "predecessor 5 (ids to 6), missing 4 to 5")
    assert suggest_option(finding) == SkipSession(topic, 0, "s")
    assert applied(sent, 0, 1, 2, 3, 5) == runs.rows(topic)


def test_sessions_that_need_no_snapshots_wait_for_none(feed: Feed, runs: LocalRuns) -> None:
    """Under Once, other content of a known id is skipped, and messages after expired offsets are read."""
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Once(keep_ids=100)))
    sent = [*TWO, ("s", update(2, a=9)), ("s", update(3, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding)) == ("same id, other content", AcceptLoss(topic, 0, 4, 5))
    resumed(runs, suggest_option(finding), SkipSession(topic, 0, "t"))
    runs.run()
    assert read_ledger(runs.folders.ledger)[-1].suspended_sessions == []  # all that was given up is read
    more = [("s", update(4, a=1)), ("s", update(5, a=1)), ("t", update(3, b=1))]
    send(feed, topic, *more)
    feed.expire(topic, 7)
    (finding,) = halted(runs)
    assert (finding.cause, suggest_option(finding)) == ("expired unread", FromSnapshot(topic, 0))
    resumed(runs, suggest_option(finding))
    runs.run()
    assert applied([*sent, *more], 0, 1, 2, 3, 5, 7, 8) == runs.rows(topic)
    assert (kept(runs), read_ledger(runs.folders.ledger)[-1].suspended_sessions) == ({}, [])


def test_what_is_given_up_under_once_goes_to_quarantine(feed: Feed, runs: LocalRuns) -> None:
    """Sessions under Once need no snapshot: `--from-snapshot` quarantines earlier messages, and sessions continue."""
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Once(keep_ids=100)))
    sent = [*TWO, ("s", update(2, a=9)), ("s", update(3, a=1)), ("t", update(4, b=1))]
    send(feed, topic, *sent)
    halted(runs)
    resumed(runs, FromSnapshot(topic, 0))
    runs.run()
    assert applied(sent, 0, 1, 2, 3, 5, 6) == runs.rows(topic)
    assert {(topic, 0, 4): "given up"} == kept(runs)


def test_what_does_not_answer_every_finding_is_refused_with_the_whole_command(feed: Feed, runs: LocalRuns) -> None:
    """A refused resumption commits nothing, not even a claim."""
    topic = feed.create("values", partitions=2)
    send(feed, topic, *TWO, ("s", update(9, a=1)))
    feed.send(topic, [*session(1), b"garbage"], key="it's", partition=1)
    first, second = halted(runs)
    version = DeltaTable(runs.folders.table).version()
    with pytest.raises(UnansweredFindings) as refused:
        resume_stream(runs.folders, why="it's known", who=WHO, accepted=[suggest_option(second)])
    assert refused.value.findings == (first,)
    assert str(first) in refused.value.problem
    command = f"lockstep resume adding --accept-loss {topic}/1@2 --skip-session {topic}/0/s --why 'it'\"'\"'s known'"
    assert refused.value.next_step == f"{command} (or --fixed, if the cause is fixed)"
    with pytest.raises(UnansweredFindings) as refused:
        resume_stream(
            runs.folders, why="it's known", who=WHO, accepted=[suggest_option(second), FromSnapshot("unknown", 0)]
        )
    assert refused.value.next_step.startswith(command)  # options of unknown partitions are left out
    with pytest.raises(UnansweredFindings):
        resume_stream(runs.folders, why=WHY, who=WHO, accepted=[])
    with pytest.raises(UnansweredFindings):
        resume_stream(runs.folders, why=WHY, who=WHO, accepted=[SkipSession(topic, 1, "it's"), suggest_option(first)])
    assert DeltaTable(runs.folders.table).version() == version
    assert len(noted(resumed(runs, suggest_option(first), suggest_option(second)))) == 2
    with pytest.raises(NotHalted, match="it is bounded"):
        resume_stream(runs.folders, why=WHY, who=WHO, accepted=[Fixed()])


def test_a_halt_of_many_partitions_has_one_answer_which_can_be_planned(feed: Feed, runs: LocalRuns) -> None:
    """Retention was faster than the stream in all partitions of one topic; the other topic has no fault."""
    wide = feed.create("wide", partitions=12)
    other = feed.create("other")
    partitions = range(12)
    for partition in partitions:
        feed.send(wide, session(1), partition=partition)
    feed.send(other, session(1))
    runs.run()
    for partition in partitions:
        feed.send(wide, [update(3, a=1), snapshot(3, a=1)], partition=partition)
        feed.expire(wide, 3, partition)
    halts = halted(runs)
    assert len(halts) == len(partitions)
    assert "--suggested --plan, then with --why '...'" in make_resume_command("adding", halts)
    version = DeltaTable(runs.folders.table).version()
    preview = plan_resume(runs.folders, [], suggested=True)
    (group,) = preview.options
    assert (group.option, group.cause, group.topics, group.partitions, group.offsets) == (
        *("from-snapshot", "expired unread"),
        *(1, 12, 12),
    )
    assert preview.unanswered == ()
    assert len(plan_resume(runs.folders, [FromSnapshot(wide, 0)], suggested=False).unanswered) == 11
    assert DeltaTable(runs.folders.table).version() == version
    resume_stream(runs.folders, why=WHY, who=WHO, accepted=[AcceptLoss(wide, 5, 2, 3)], suggested=True)
    assert runs.run() is RunOutcome.ENDED
    rows = [row for row in read_ledger(runs.folders.ledger) for note in row.accepted if note.kind == "accept-loss"]
    assert [(row.partition, row.until) for row in rows] == [(5, 3)]


def test_what_is_not_where_the_stream_stands_is_refused_and_the_stream_stays_halted(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO, ("s", update(9, a=1)))
    (finding,) = halted(runs)
    with pytest.raises(PositionMismatch, match="is at offset 4") as refused:
        resume_stream(runs.folders, why=WHY, who=WHO, accepted=[AcceptLoss(topic, 0, 3, 5)])
    assert f"--accept-loss {topic}/0@4" in refused.value.next_step
    with pytest.raises(PositionMismatch, match="no such partition"):
        resume_stream(runs.folders, why=WHY, who=WHO, accepted=[suggest_option(finding), FromSnapshot("another", 0)])
    with pytest.raises(StreamHalted):
        runs.run()


def test_options_are_read_as_they_are_written() -> None:
    """Session names are untrusted: a shell reads them unchanged, or they are not proposed."""
    odd = SkipSession("books.eth", 12, "a/b c'd")
    _, argument = shlex.split(resume_options.list_options([odd]))
    assert SkipSession.parse(argument) == odd
    assert AcceptLoss.parse("books.eth/0@120-121") == AcceptLoss("books.eth", 0, 120, 121)
    for snapshots in (FromSnapshot("books.eth", 0), FromSnapshot("books.eth", 0, 120, 170)):
        assert FromSnapshot.parse(snapshots.argument) == snapshots
    for wrong in ("books.eth", "books.eth/0@9-8", "books/eth/0@1-2", "books.eth/x@1-2"):
        with pytest.raises(ValueError, match="for example"):
            AcceptLoss.parse(wrong)


def test_every_cause_of_a_fault_is_answered_by_what_is_proposed() -> None:
    for fault in (
        *Fault,
        resume_options.BURST,
        *resume_options.REPEATS,
        "gap",
        "checksum",
    ):
        for name in ("s", "line\nbreak", "\udcff", "x" * 500, None):
            finding = Finding(fault, "books.eth", "id", 0, 5, 6, session=name)
            assert suggest_option(finding).covers(finding), finding
            assert "\n" not in resume_options.list_options([suggest_option(finding)])
