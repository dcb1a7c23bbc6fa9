"""Cases that random messages have found: incomplete snapshots, and ends while messages are held back."""

from __future__ import annotations

import pytest

from lockstep import Kind
from lockstep.engine.executor.task import REFUSED_MAX
from lockstep.testing import Idle, Judgement, RunResult, SentMessage, Split, run
from tests.correctness.properties.feeds import Step, feed
from tests.correctness.properties.probes import PLACELESS, REFUSED, STREAMS, WRONG_ROW, Held, Seen, Sent


def ran(name: str, *steps: Step) -> RunResult[Held, Seen]:
    messages = feed(list(steps))
    whole = run(STREAMS[name], *messages)
    assert whole == run(STREAMS[name], *messages, split=Split(1))
    return whole


def judgements(of: RunResult[Held, Seen]) -> list[Judgement]:
    return [verdict.judgement for verdict in of.verdicts]


INCOMPLETE: tuple[Step, ...] = (
    ("a", "snapshot", "-", 1, 1),
    ("a", "part", "-", 1, 2),
    ("a", "end", "-", 1, 3),
    ("a", "snapshot", "-", 1, 4),
)


@pytest.mark.parametrize("name", ["strict-suspends", "ordered", "window", "reorder", "checksum", "once-suspends"])
def test_an_end_within_a_snapshot_suspends_its_session_until_the_next(name: str) -> None:
    came = ran(name, *INCOMPLETE)
    assert judgements(came) == [Judgement.ACCEPT, Judgement.BUFFER, Judgement.SUSPEND, Judgement.ACCEPT]
    assert (
        came.verdicts[2].cause,
        {session: state.values for session, state in came.states.items()},
    ) == ("snapshot not complete", {"a": [4]})
    assert sorted(each.offset for each in came.quarantine) == [1, 2]


@pytest.mark.parametrize("name", ["strict", "once"])
def test_an_end_within_a_snapshot_halts_where_nothing_may_be_lost(name: str) -> None:
    came = ran(name, *INCOMPLETE)
    assert came.finding is not None
    assert (came.finding.cause, came.finding.offset) == ("snapshot not complete", 2)


def test_best_effort_gives_up_a_snapshot_that_ends_early() -> None:
    came = ran("none/timed", *INCOMPLETE)
    assert judgements(came) == [Judgement.ACCEPT, Judgement.BUFFER, Judgement.ACCEPT, Judgement.ACCEPT]
    assert [each.offset for each in came.quarantine] == [1]
    assert [row.what for row in came.rows] == ["open", "end", "open"]


@pytest.mark.parametrize("name", ["none", "once"])
@pytest.mark.parametrize("refused", [REFUSED, WRONG_ROW])
def test_a_snapshot_with_a_part_that_is_refused_leaves_the_session_as_it_was(name: str, refused: int) -> None:
    came = ran(
        name,
        ("b", "update", "-", 1, 7),
        ("b", "part", "-", 1, 5),
        ("b", "part", "-", 1, refused),
        ("b", "snapshot", "-", 1, 6),
        ("b", "update", "-", 1, 8),
    )
    assert came.states["b"].values == [7, 8]
    assert sorted(each.offset for each in came.quarantine) == [1, 2, 3]


def test_a_new_session_whose_first_snapshot_is_refused_stays_unknown() -> None:
    came = ran("once", ("b", "part", "-", 1, REFUSED), ("b", "snapshot", "-", 1, 6), ("b", "update", "-", 1, 8))
    assert came.states["b"].values == [8]


@pytest.mark.parametrize("name", ["reorder", "reorder/timed"])
def test_what_waits_behind_an_end_goes_to_quarantine_with_it(name: str) -> None:
    came = ran(
        name,
        ("a", "snapshot", "-", 1, 1),
        ("a", "end", "-", 0, 3),
        ("a", "update", "swap", 1, 7),
        ("a", "snapshot", "-", 1, 4),
    )
    assert [each.offset for each in came.quarantine] == [1]
    assert {session: state.values for session, state in came.states.items()} == {"a": [4]}


def test_a_snapshot_that_resets_goes_behind_what_waits_even_an_end() -> None:
    came = ran(
        "reorder/timed",
        ("a", "snapshot", "-", 1, 1),
        ("a", "update", "gap", 1, 2),
        ("a", "end", "-", 1, 3),
        ("a", "snapshot", "resets", 1, 4),
    )
    assert [row.what for row in came.rows] == ["open", "apply", "end", "open"]
    assert {session: state.values for session, state in came.states.items()} == {"a": [4]}
    assert came.quarantine == ()


@pytest.mark.parametrize("name", ["strict-suspends", "ordered", "checksum"])
@pytest.mark.parametrize("breaks", ["garbage", "-"])
def test_the_rest_of_a_snapshot_that_was_interrupted_is_no_snapshot(name: str, breaks: str) -> None:
    """The state would be incomplete: garbage, or a message without a session, may have been a part of the snapshot."""
    came = ran(
        name,
        ("a", "part", "-", 1, 1),
        ("a", "part", breaks, 1, PLACELESS),
        ("a", "part", "-", 1, 3),
        ("a", "snapshot", "-", 1, 4),
        ("a", "update", "-", 1, 5),
        ("a", "snapshot", "-", 1, 6),
    )
    assert (came.states["a"].values, [row.values for row in came.rows]) == ([6], [[6]])
    assert sorted(each.offset for each in came.quarantine) == [0, 1, 2, 3, 4]


def test_a_gap_within_a_snapshot_waits_for_a_whole_one() -> None:
    part = ("a", "part", "-", 1, 1)
    completing = ("a", "snapshot", "gap", 1, 2)
    came = ran("strict-suspends", part, completing, ("a", "update", "-", 1, 3), ("a", "snapshot", "-", 1, 4))
    assert (came.states["a"].values, [row.values for row in came.rows]) == ([4], [[4]])


def test_a_snapshot_whose_last_message_is_refused_is_given_up() -> None:
    came = ran("once", ("a", "part", "-", 1, 1), ("a", "snapshot", "-", 1, REFUSED), ("a", "snapshot", "-", 1, 4))
    assert (came.states["a"].values, [row.values for row in came.rows]) == ([4], [[4]])
    assert sorted(each.offset for each in came.quarantine) == [0, 1]


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize("messages", [1, 5, 1_000])
@pytest.mark.parametrize(("value", "cause"), [(REFUSED, "transform raised"), (WRONG_ROW, "value not storable")])
def test_what_waits_in_many_sessions_and_is_refused_when_one_message_releases_it_all(
    value: int, cause: str, messages: int, *, is_idle: bool
) -> None:
    """Each refused message costs a fold of the releasing message; the stream continues after it."""
    sessions = [f"s{n}" for n in range(2 * REFUSED_MAX)]
    opened = [SentMessage(value=Sent(Kind.SNAPSHOT, 1, 0, 1), key=session) for session in sessions]
    waiting = [SentMessage(value=Sent(Kind.UPDATE, 3, 1, value), key=session) for session in sessions]
    later = [SentMessage(value=Sent(Kind.SNAPSHOT, n, 100, 1), key="later") for n in (1, 2)]
    releasing = [Idle(100_000_000), *later] if is_idle else later
    came = run(STREAMS["reorder"], *opened, *waiting, *releasing, split=Split(messages))
    assert sorted(each.offset for each in came.quarantine) == [*range(len(opened), len(opened) + len(waiting))]
    assert {each.cause for each in came.quarantine} == {cause}
    assert came.states["later"].values == [1]
