"""The strongest promise that the messages keep is proposed, and never a promise that they break."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.inference.feeds import propose, sample_keyed, sample_values


def test_numbered_messages_of_each_key_are_a_sequence_from_the_first_message_on() -> None:
    numbers = {"a": count(5), "b": count(1)}
    sent = [(key, {"n": next(numbers[key]), "value": 1.5}) for key in "abbaabbbaa"]
    found = propose(sample_keyed(sent)).proposal
    assert found.integrity == "Strict(evidence=Sequence(), session_start=SessionStart.FIRST_MESSAGE)"
    assert (found.session, found.order.number, found.snapshot) == (None, ("n",), None)


def test_a_lost_message_leaves_no_sequence() -> None:
    sent = [("a", {"n": number, "value": 1.5}) for number in (1, 2, 3, 5, 6, 7)]
    found = propose(sample_keyed(sent)).proposal
    assert found.integrity == "Strict(evidence=LogOnly(), session_start=SessionStart.FIRST_MESSAGE)"
    assert any(each.startswith("Does `n` prove the order? It rises with gaps") for each in found.questions)


def test_snapshots_are_found_by_their_type() -> None:
    sent: list[tuple[str, object]] = []
    for key in "ab":
        sent.append((key, {"type": "snapshot", "seq": 1, "values": {"x": 1.0}}))
        sent += [(key, {"type": "update", "seq": n, "x": 2.0}) for n in range(2, 6)]
    found = propose(sample_keyed(sent)).proposal
    assert found.integrity == "Strict(evidence=Sequence())"
    assert [record.tag for record in found.records if record.tag_field] == ["snapshot", "update"]


def test_without_keys_a_field_is_the_session() -> None:
    numbers = {"a": count(1), "b": count(7)}
    sent = [{"sensor": each, "n": next(numbers[each])} for each in "abbaabababb"]
    found = propose(sample_values(sent, key=None)).proposal
    assert (found.session, found.order.kind) == (("sensor",), "sequence")
    assert any(each.startswith("Is `sensor` the session?") for each in found.questions)


def test_messages_without_keys_and_numbers_are_in_the_order_of_their_partition() -> None:
    found = propose(sample_values([{"x": n % 3} for n in range(12)], key=None)).proposal
    assert found.session == "partition"
    assert any(each.startswith("What is a session?") for each in found.questions)


def test_messages_before_the_first_snapshot_are_skipped() -> None:
    sent = [("a", {"n": n, "full": True} if n == 4 else {"n": n}) for n in range(1, 12)]
    proposed = propose(sample_keyed(sent))
    assert proposed.proposal.starts_at_snapshot
    assert "start=FirstSnapshot()" in proposed.stream


def test_garbage_and_tombstones_are_questions() -> None:
    values: list[object] = [{"n": 1}, b"{", {"n": 2}, b"\xff", {"n": 3}, {"n": 4}]
    found = propose(sample_values(values)).proposal
    assert any("Why do 2 messages are no JSON" in each or "2 messages are no JSON" in each for each in found.questions)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_fault_of_one_message_takes_the_promise_of_the_sequence(data: st.DataObject) -> None:
    """The message is lost, repeated or swapped, at any position."""
    numbers = list(range(10, 30))
    at = data.draw(st.integers(1, len(numbers) - 2))
    fault = data.draw(st.sampled_from(["lost", "repeated", "swapped"]))
    if fault == "lost":
        del numbers[at]
    elif fault == "repeated":
        numbers.insert(at, numbers[at])
    else:
        numbers[at : at + 2] = reversed(numbers[at : at + 2])
    found = propose(sample_keyed([("a", {"n": number}) for number in numbers])).proposal
    assert found.order.kind != "sequence"


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_near_those_of_kafka_are_event_times_in_their_unit(unit: str, second: int) -> None:
    sent = [("a", {"n": n, "q": (1_700_000_000 + n) * second}) for n in range(1, 9)]
    found = propose(sample_keyed(sent)).proposal
    assert found.event_time is not None
    assert (found.event_time.path, found.event_time.unit) == (("q",), unit)
