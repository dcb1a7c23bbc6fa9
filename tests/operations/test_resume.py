"""A halted stream goes on by what an operator names: from the halt, over the command that it prints, to right rows."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import Limits, Ordered
from lockstep.engine import watch
from lockstep.engine.loop import Outcome
from lockstep.errors import IntegrityLost, StreamHalted
from lockstep.integrity import acceptance, contract
from lockstep.integrity.acceptance import FromSnapshot, Gone, Grown, Loss, Mended, Quarantined, SkipSession, proposed
from lockstep.operations.accepting import NotThere
from lockstep.operations.resume import NotCovered, NotHalted, resume
from lockstep.rehearsal.broker import Broker
from lockstep.table.head import Desired
from lockstep.table.ledger import Accepted, LedgerRow, read_ledger
from tests.engine.feed import Feed, folded, session, snapshot, update
from tests.engine.local_runs import LocalRuns
from tests.engine.streams import BY_CHECKSUM, POISON, adding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lockstep.integrity.acceptance import Acceptance
    from lockstep.integrity.finding import Finding

WHY, WHO = "the producer lost it", "an operator"


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CONFIRM_SECONDS", 0.2)


def halted(runs: LocalRuns) -> tuple[Finding, ...]:
    """What halts the next run; and that the one after is refused by the same."""
    with pytest.raises(IntegrityLost) as lost:
        runs.run()
    with pytest.raises(StreamHalted) as refused:
        runs.run()
    assert refused.value.findings == lost.value.findings
    return lost.value.findings


def resumed(runs: LocalRuns, *accepted: Acceptance) -> list[LedgerRow]:
    """Resume; the rows that the resumption left in the ledger, by topic id and partition."""
    head = resume(runs.folders, why=WHY, who=WHO, accepted=accepted)
    assert head.desired is Desired.RUNNING
    return [row for row in read_ledger(runs.folders.ledger) if row.batch == head.batch]


def noted(rows: Iterable[LedgerRow]) -> list[tuple[str, str, int, int, str | None]]:
    """What the ledger says of what was accepted; who and why are always there."""
    found: list[Accepted] = [note for row in rows for note in row.accepted]
    assert {(note.who, note.why) for note in found} <= {(WHO, WHY)}
    return [(note.kind, note.cause, note.start, note.until, note.session) for note in found]


def kept(runs: LocalRuns) -> dict[tuple[str, int, int], str]:
    rows = DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist()
    return {(row["topic"], row["partition"], row["offset"]): row["cause"] for row in rows}


def send(feed: Feed, topic: str, *messages: tuple[str, bytes]) -> None:
    for key, value in messages:
        feed.send(topic, [value], key=key)


def applied(sent: list[tuple[str, bytes]], *offsets: int) -> list[tuple[object, ...]]:
    """The rows of a plain fold over the snapshots and updates at these offsets."""
    return folded([(at, *sent[at]) for at in offsets])


TWO = [("s", snapshot(1, a=1)), ("t", snapshot(1, b=1)), ("s", update(2, a=1)), ("t", update(2, b=1))]
"""Two sessions in one partition, offsets 0 to 3."""


def test_a_skipped_session_waits_for_its_snapshot_while_the_rest_of_its_partition_goes_on(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(7, a=1)), ("t", update(3, b=1)), ("s", update(8, a=1)), ("s", snapshot(20, a=5))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert proposed(finding) == SkipSession(topic, 0, "s")
    (row,) = resumed(runs, proposed(finding))
    assert noted([row]) == [("skip-session", "gap", 4, 5, "s")]
    assert [(each.session, each.before) for each in row.suspended_sessions] == [("s", 5)]
    more = [("s", update(21, a=1)), ("t", update(4, b=1))]
    send(feed, topic, *more)
    assert runs.with_limits(Limits(batch_messages=1)).run() is Outcome.ENDED
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
    assert noted(resumed(runs, proposed(finding))) == [("skip-session", "unknown session", 0, 1, "s")]
    runs.run()
    assert applied(sent, 2, 3) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 0): "suspended", (topic, 0, 1): "suspended"}


def test_a_message_on_which_the_fold_fails_is_kept_whole_when_its_session_is_skipped(
    feed: Feed, runs: LocalRuns
) -> None:
    bad = update(3, a=1, b=POISON)
    topic, runs = feed.create("values"), runs.of(adding(feed.pattern, BY_CHECKSUM))
    sent = [*TWO, ("s", bad), ("t", update(3, b=1)), ("s", update(4, a=1)), ("s", snapshot(20, a=5))]
    send(feed, topic, *sent, ("s", update(21, a=1)))
    (finding,) = halted(runs)
    assert noted(resumed(runs, proposed(finding))) == [("skip-session", "transform raised", 4, 5, "s")]
    runs.run()
    assert applied([*sent, ("s", update(21, a=1))], 0, 1, 2, 3, 5, 7, 8) == runs.rows(topic)
    values = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"]) for row in values] == [(4, bad), (6, sent[6][1])]


def test_all_sessions_of_a_partition_wait_for_their_snapshots_after_garbage(feed: Feed, runs: LocalRuns) -> None:
    """Whose message it was is not known; the garbage itself is kept too, and unknown sessions wait like the others."""
    topic = feed.create("values")
    late = [("new", update(1, c=1)), ("s", update(3, a=1)), ("s", snapshot(9, a=5)), ("s", update(10, a=1))]
    sent = [*TWO, ("s", b"\x00garbage"), *late]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert proposed(finding) == FromSnapshot(topic, 0)
    (row,) = resumed(runs, proposed(finding))
    assert (row.until, row.suspended_from) == (4, 5)
    assert noted([row]) == [("from-snapshot", "undecodable", 4, 5, None)]
    assert runs.run() is Outcome.ENDED
    assert applied(sent, 0, 1, 2, 3, 7, 8) == runs.rows(topic)
    found = kept(runs)
    assert [found.pop((topic, 0, at)) for at in (4, 5, 6)] == ["undecodable", "unknown session", "suspended"]
    send(feed, topic, ("t", update(3, b=1)))
    runs.run()
    assert kept(runs)[(topic, 0, 9)] == "suspended"
    send(feed, topic, ("s", b"garbage again"))
    assert [each.cause for each in halted(runs)] == ["undecodable"]


def test_messages_that_expired_unread_are_passed_over_and_sessions_begin_anew(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(3, a=1)), ("s", update(4, a=1)), ("t", update(3, b=1)), ("t", snapshot(7, b=2))]
    send(feed, topic, *sent[:4])
    runs.run()
    send(feed, topic, *sent[4:], ("t", update(8, b=1)))
    feed.expire(topic, 6)
    (finding,) = halted(runs)
    assert (finding.cause, proposed(finding)) == ("expired unread", FromSnapshot(topic, 0))
    (row,) = resumed(runs, proposed(finding))
    assert (row.start, row.until, row.suspended_from) == (4, 6, 6)
    assert row.accepted_loss == f"offsets 4 to 5: {WHY} ({WHO})"
    runs.run()
    assert applied([*sent, ("t", update(8, b=1))], 0, 1, 2, 3, 7, 8) == runs.rows(topic)
    assert kept(runs) == {(topic, 0, 6): "suspended"}


def test_a_repeated_message_is_passed_over_alone(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    sent = [*TWO, ("s", update(2, a=9)), ("s", update(3, a=1))]
    send(feed, topic, *sent)
    (finding,) = halted(runs)
    assert proposed(finding) == Loss(topic, 0, 4, 5)
    (row,) = resumed(runs, proposed(finding))
    assert (row.start, row.until, row.accepted_loss) == (4, 5, f"offsets 4 to 4: {WHY} ({WHO})")
    runs.run()
    assert applied(sent, 0, 1, 2, 3, 5) == runs.rows(topic)


def test_a_topic_created_anew_is_read_from_its_start_and_its_old_life_is_retired(feed: Feed, runs: LocalRuns) -> None:
    topic, other = feed.create("values"), feed.create("other")
    send(feed, topic, *TWO)
    send(feed, other, *TWO)
    runs.run()
    feed.delete(topic)
    feed.create_again("values")
    again = [("s", snapshot(1, a=5)), ("s", update(2, a=1))]
    send(feed, topic, *again)
    (finding,) = halted(runs)
    assert [proposed(finding).OPTION, proposed(finding).argument] == ["accept-recreated", topic]
    rows = resumed(runs, proposed(finding))
    assert sorted((row.topic, row.retired) for row in rows) == [(other, False), (topic, False), (topic, True)]
    assert noted(rows) == [("accept-recreated", "topic re-created", 4, 4, None)]
    for _ in range(2):  # nothing is found again
        assert runs.run() is Outcome.ENDED
    assert [*applied(TWO, 0, 1, 2, 3), *applied(again, 0, 1)] == runs.rows(topic)


def test_a_topic_that_is_gone_is_dropped_and_comes_back_as_a_new_one(feed: Feed, runs: LocalRuns) -> None:
    topic, other = feed.create("values", partitions=2), feed.create("other")
    send(feed, topic, *TWO)
    send(feed, other, *TWO)
    runs.run()
    feed.delete(topic)
    found = halted(runs)
    assert {proposed(finding) for finding in found} == {Gone(topic)}
    assert noted(resumed(runs, Gone(topic))) == [("accept-gone", "topic gone", at, at, None) for at in (4, 0)]
    send(feed, other, ("s", update(3, a=1)))
    runs.run()
    assert applied([*TWO, ("s", update(3, a=1))], *range(5)) == runs.rows(other)
    feed.create_again("values")
    send(feed, topic, *TWO)
    runs.run()
    assert applied(TWO, 0, 1, 2, 3) * 2 == runs.rows(topic)


def test_new_partitions_are_read_from_their_start_once_their_growth_is_accepted(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO)
    runs.run()
    feed.grow(topic, partitions=3)
    feed.send(topic, session(2), key="u", partition=2)
    found = halted(runs)
    assert {proposed(finding) for finding in found} == {Grown(topic)}
    assert noted(resumed(runs, Grown(topic))) == [("accept-growth", "partitions grew", 0, 0, None)] * 2
    send(feed, topic, ("s", update(3, a=1)))
    runs.run()
    assert applied([*TWO, ("s", update(3, a=1))], *range(5)) == runs.rows(topic)
    assert folded([(at, "u", value) for at, value in enumerate(session(2))]) == runs.rows(topic, 2)


def test_a_burst_is_accepted_once_until_it_is_over(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    runs = runs.of(adding(feed.pattern, Ordered())).with_limits(Limits(batch_messages=150))
    feed.send(topic, [snapshot(1, a=1), *[b"garbage"] * 290, snapshot(2, a=1), *session(30, first=3)])
    (finding,) = halted(runs)
    assert (finding.cause, proposed(finding)) == ("quarantine burst", Quarantined())
    assert noted(resumed(runs, Quarantined())) == [("accept-quarantine", "quarantine burst", 0, 0, None)]
    runs.run()
    assert set(kept(runs)) == {(topic, 0, at) for at in range(1, 291)}
    feed.send(topic, [b"garbage"] * 200)
    assert [each.cause for each in halted(runs)] == ["quarantine burst"]


def test_a_log_that_was_cut_is_caught_up_with_and_sessions_begin_anew(tmp_path: Path) -> None:
    """A broker that lost a partition's folder gives out offsets again that were read already: they are passed over."""
    with Broker.start(tmp_path / "kafka") as broker:
        feed = Feed(broker.bootstrap_servers, "cut")
        topic, runs = feed.create("values"), LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)
        send(feed, topic, *TWO)
        runs.run()
        broker.stop()
        shutil.rmtree(broker.folder / "data" / f"{topic}-0")
        broker.restart()
        again = [("s", update(9, a=9)), ("s", snapshot(10, a=5))]
        send(feed, topic, *again)
        (finding,) = halted(runs)
        assert (finding.cause, proposed(finding).OPTION) == ("log truncated", "accept-truncated")
        (row,) = resumed(runs, proposed(finding))
        assert (row.until, row.suspended_from, row.catching_up) == (4, 4, True)
        runs.run()
        assert read_ledger(runs.folders.ledger)[-1].catching_up
        below = [("t", update(3, b=1)), ("t", snapshot(4, b=7))]
        after = [("t", update(5, b=1)), ("s", update(11, a=1)), ("t", snapshot(20, b=1)), ("t", update(21, b=1))]
        send(feed, topic, *below, *after)
        runs.run()
        assert [*applied(TWO, 0, 1, 2, 3), *applied([*again, *below, *after], 6, 7)] == runs.rows(topic)
        assert kept(runs) == {(topic, 0, 4): "suspended", (topic, 0, 5): "suspended"}
        assert not read_ledger(runs.folders.ledger)[-1].catching_up


def test_what_does_not_answer_every_finding_is_refused_with_the_whole_command(feed: Feed, runs: LocalRuns) -> None:
    """Nothing is committed by it, not even a claim."""
    topic = feed.create("values", partitions=2)
    send(feed, topic, *TWO, ("s", update(9, a=1)))
    feed.send(topic, [*session(1), b"garbage"], key="it's", partition=1)
    first, second = halted(runs)
    version = DeltaTable(runs.folders.table).version()
    with pytest.raises(NotCovered) as refused:
        resume(runs.folders, why="it's known", who=WHO, accepted=[proposed(second)])
    assert refused.value.findings == (first,)
    assert str(first) in refused.value.problem
    command = f"lockstep resume adding --from-snapshot {topic}/1 --skip-session {topic}/0/s --why 'it'\"'\"'s known'"
    assert refused.value.next_step == f"{command} (or --mended, where it was mended)"
    with pytest.raises(NotCovered):
        resume(runs.folders, why=WHY, who=WHO, accepted=[])
    with pytest.raises(NotCovered):
        resume(runs.folders, why=WHY, who=WHO, accepted=[SkipSession(topic, 1, "it's"), proposed(first)])
    assert DeltaTable(runs.folders.table).version() == version
    assert len(noted(resumed(runs, proposed(first), proposed(second)))) == 2
    with pytest.raises(NotHalted, match="it is running"):
        resume(runs.folders, why=WHY, who=WHO, accepted=[Mended()])


def test_what_is_not_where_the_stream_stands_is_refused_and_the_stream_stays_halted(
    feed: Feed, runs: LocalRuns
) -> None:
    topic = feed.create("values")
    send(feed, topic, *TWO, ("s", update(9, a=1)))
    (finding,) = halted(runs)
    with pytest.raises(NotThere, match="stands at offset 4") as refused:
        resume(runs.folders, why=WHY, who=WHO, accepted=[Loss(topic, 0, 3, 5)])
    assert f"--accept-loss {topic}/0@4-5" in refused.value.next_step
    with pytest.raises(NotThere, match="no such partition"):
        resume(runs.folders, why=WHY, who=WHO, accepted=[proposed(finding), FromSnapshot("another", 0)])
    with pytest.raises(StreamHalted):
        runs.run()


def test_options_are_read_as_they_are_written() -> None:
    """Sessions come from strangers: a shell takes them as they are, or they are not proposed."""
    odd = SkipSession("books.eth", 12, "a/b c'd")
    _, argument = shlex.split(acceptance.options([odd]))
    assert SkipSession.parse(argument) == odd
    assert Loss.parse("books.eth/0@120-121") == Loss("books.eth", 0, 120, 121)
    for wrong in ("books.eth", "books.eth/0@9-8", "books/eth/0@1-2", "books.eth/x@1-2"):
        with pytest.raises(ValueError, match="for example"):
            Loss.parse(wrong)


def test_every_cause_of_a_fault_is_answered_by_what_is_proposed() -> None:
    from lockstep.integrity.finding import Finding

    for fault in (*(each.value for each in contract.Fault), acceptance.BURST, *acceptance.REPEATS, "gap", "checksum"):
        for name in ("s", "line\nbreak", "x" * 500, None):
            finding = Finding(fault, "books.eth", "id", 0, 5, 6, session=name)
            assert proposed(finding).covers(finding), finding
            assert "\n" not in acceptance.options([proposed(finding)])
