"""Any batches, crashes and restarts lead to the same rows, states, verdicts and messages set aside."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lockstep import NoIntegrity, Ordered, Stream
from lockstep.engine.executor import rejects
from lockstep.testing import CRASH, RENUMBER, RESTART, Event, Idle, Judgement, NewTopic, SentMessage, Split, run
from tests.support.meter_stream import MINUTE, Close, Meter, Read, Start, Total, meters, reordered
from tests.support.meter_stream import Message as Reading
from tests.unit.testing.panels import Message, Panel, Snapshot, Update, loose, panels
from tests.unit.testing.panels import Reading as PanelReading

ordered = dataclasses.replace(panels, integrity=Ordered())
SPLITS = [1, 2, 7, Split(1, crashes=False), Split(None), Split(3, crashes=False)]
BEGIN = Snapshot(1, {"a": 1.0})

Panels = list[Message | bytes | SentMessage[Message] | Event]
CASES: dict[str, Panels] = {
    "plain": [BEGIN, Update(2, "a", 2.0), Update(3, "b", 3.0), Update(4, "a", 4.0)],
    "gap": [BEGIN, Update(2, "a", 2.0), Update(4, "b", 3.0), Update(5, "a", 4.0)],
    "garbage": [BEGIN, b"{", Update(2, "a", 2.0), Snapshot(3, {"a": 1.0}), Update(4, "b", 3.0)],
    "raises": [BEGIN, Update(2, "a", 2.0, total=9.0), Update(2, "a", 3.0), Snapshot(3, {}), Update(4, "b", 3.0)],
    "no value": [BEGIN, SentMessage(value=None), Update(2, "a", 2.0)],
}


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("stream", [panels, ordered, loose], ids=["strict", "ordered", "none"])
@pytest.mark.parametrize("case", CASES)
def test_any_split_gives_what_one_batch_gives(
    case: str, stream: Stream[Message, Panel, PanelReading], split: int | Split
) -> None:
    whole = run(stream, *CASES[case], key="p")
    assert whole == run(stream, *CASES[case], key="p", split=split)


def test_a_run_in_batches_leaves_no_file_open() -> None:
    before = list_mapped_stores()
    run(ordered, *CASES["plain"], key="p", split=2)
    assert list_mapped_stores() <= before


def list_mapped_stores() -> set[str]:
    """Return the local stores that this process maps, each by its deleted file."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "lockstep-testing-" in line}


def test_more_rejected_messages_than_one_range_may_hold_end_no_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "KEPT_BYTES_MAX", 1_200)
    sent: Panels = [BEGIN, *[b"{"] * 7, Snapshot(2, {"a": 1.0}), Update(3, "a", 2.0)]
    whole = run(ordered, *sent, key="p").or_raise()
    assert ([row.value for row in whole.rows], len(whole.quarantine)) == ([2.0], 7)
    assert whole == run(ordered, *sent, key="p", split=4)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_messages_held_back_over_batches_are_released_as_in_one(split: int | Split) -> None:
    sent: list[Reading] = [Start(1, 0), Read(4, 3, 4), Read(3, 2, 0), Read(2, 1, 2), Read(9, 3, 9), Start(10, 60)]
    whole = run(reordered, *sent, key="a").or_raise()
    assert [Total("zero", 0, ""), Total("minute", 0, "2 0 4 9")] == whole.rows
    assert whole == run(reordered, *sent, key="a", split=split)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_timers_and_silent_sessions_over_batches_fire_as_in_one(split: int | Split) -> None:
    sent: list[SentMessage[Reading]] = [
        SentMessage(value=Start(1, 0), key="a"),
        SentMessage(value=Read(2, 5, 5), key="a"),
        SentMessage(value=Start(1, 50), key="b"),
        SentMessage(value=Read(2, 61, 0), key="b"),
        SentMessage(value=Start(1, 700), key="c"),
        SentMessage(value=Close(2, 701), key="c"),
    ]
    whole = run(meters, *sent).or_raise()
    assert whole == run(meters, *sent, split=split)
    assert (whole.proven[0].row.what, whole.proven[0].session) == ("minute", "a")


def test_a_crash_and_a_restart_change_nothing() -> None:
    sent: Panels = [BEGIN, Update(2, "a", 2.0), Update(3, "b", 3.0)]
    events: Panels = [BEGIN, CRASH, Update(2, "a", 2.0), RESTART, Update(3, "b", 3.0), CRASH]
    assert run(panels, *sent, key="p") == run(panels, *events, key="p")


def test_a_topic_made_anew_is_a_violation_where_nothing_may_be_lost() -> None:
    ran = run(panels, BEGIN, RENUMBER, BEGIN, key="p")
    assert ran.finding is not None
    assert (ran.finding.cause, ran.finding.offset, len(ran.folded)) == ("topic re-created", 1, 1)


def test_sessions_of_a_topic_made_anew_begin_again() -> None:
    ran = run(ordered, BEGIN, RENUMBER, Update(2, "a", 2.0), Snapshot(1, {"b": 1.0}), key="p").or_raise()
    assert [message.offset for message in ran.folded] == [0, 0, 1]
    assert Judgement.SUSPEND is not ran.verdicts[1].judgement is Judgement.QUARANTINE
    assert {name: state.values for name, state in ran.states.items()} == {"p": {"b": 1.0}}


def test_another_topic_has_sessions_of_its_own() -> None:
    stream = dataclasses.replace(panels, integrity=NoIntegrity())
    ran = run(stream, BEGIN, NewTopic("panels.b"), Snapshot(7, {"x": 1.0}), Update(8, "x", 2.0), key="p").or_raise()
    assert {name: state.values for name, state in ran.states.items()} == {"p": {"a": 1.0}, "panels.b: p": {"x": 2.0}}
    assert [(each.topic, each.offset) for each in ran.folded] == [("testing", 0), ("panels.b", 0), ("panels.b", 1)]


@pytest.mark.parametrize("split", [None, *SPLITS], ids=str)
def test_where_nothing_comes_the_clock_moves_timers_and_ends_sessions(split: int | Split | None) -> None:
    sent: list[Reading | Event] = [Start(1, 0), Read(2, 5, 5), Idle(MINUTE), Idle(2 * MINUTE), Read(3, 130, 6)]
    ran = run(meters, *sent, key="a", split=split).or_raise()
    assert [(Total("minute", 0, "5"), 2, 0)] == [(each.row, each.emit_offset, each.number) for each in ran.proven]
    assert {"a": Meter(2, [6])} == ran.states


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 0 messages: at least 1"):
        Split(0)
