"""Envelopes that no table or class can hold: a verdict on their own messages, by name, and the proof says the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import NoIntegrity, Once, Ordered, SessionStart, Strict
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.strict import LogOnly
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.support.odd_envelopes import Doubling, summing
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=10),
    "ordered": Ordered(session_start=SessionStart.FIRST_MESSAGE),
}
ODD: dict[str, tuple[dict[str, object], str]] = {
    "a number for a session": ({"session": 5, "n": 1}, "Envelope.session = 5 is of type int, not str"),
    "no session": ({"n": 1}, "Envelope.session = None is of type NoneType, not str"),
    "no envelope": ({"nothing": True}, "'NoneType' object has no attribute 'kind'"),
    "a text for a kind": ({"session": "a", "kind": "update", "n": 1}, "Envelope.kind = 'update' is of type str"),
    "a lone surrogate in a session": ({"session": "\ud800", "n": 1}, "can't encode character '\\ud800'"),
}


def sent(odd: dict[str, object]) -> list[bytes]:
    plain: list[dict[str, object]] = [{"session": session, "n": 1} for session in ("a", "b")]
    return [json.dumps(message).encode() for message in (*plain, odd, *plain, *plain)]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_envelope_is_kept_with_its_reason_and_the_stream_goes_on(
    feed: Feed, runs: LocalRuns, name: str, odd: str
) -> None:
    """The first two ended every task with "the fold is not deterministic", the last two with UnicodeEncodeError."""
    message, reason = ODD[odd]
    runs, topic = runs.of(summing(feed.pattern, CLASSES[name])), feed.create("values")
    feed.send(topic, sent(message))
    runs.run()
    (kept,) = [row for row in DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist() if row["offset"] == 2]
    assert (kept["cause"], reason in kept["found"]) == ("transform raised", True), kept["found"]
    assert read_table(runs.folders.table)["_offset"].to_pylist()[-2:] == [5, 6]
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka, None)
    assert (found.status, found.violations) == (InvariantStatus.PROVEN, ())


def test_a_halt_at_a_session_of_lone_surrogates_is_committed(feed: Feed, runs: LocalRuns) -> None:
    runs, topic = runs.of(summing(feed.pattern, Strict(evidence=LogOnly()))), feed.create("values")
    feed.send(topic, [json.dumps({"session": "\ud800", "n": 1}).encode()])
    with pytest.raises(IntegrityLost, match=r"unknown session at .* session '\\\\ud800'"):
        runs.run()


def test_the_proof_names_a_row_whose_event_time_is_outside_of_the_calendar(feed: Feed, runs: LocalRuns) -> None:
    """A producer of nanoseconds, for example; the proof ended with OverflowError."""
    runs, topic = runs.of(summing(feed.pattern, NoIntegrity())), feed.create("values")
    feed.send(topic, [json.dumps({"session": "a", "n": 1, "time_us": 10**18}).encode()])
    runs.run()
    other = summing(feed.pattern, NoIntegrity(), Doubling())
    found = verify_stream(other, runs.folders, runs.settings.kafka, None).violations
    assert ("row 0: sum = 2", "1") in [(each.expected, each.found) for each in found]
