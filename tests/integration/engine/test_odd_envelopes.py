"""Envelopes that no table or class can store: a verdict on their messages, by name, and the proof agrees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep import NoIntegrity, Once, Ordered, SessionStart, Strict
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.integrity.strict import LogOnly
from lockstep.verify.verify import verify_stream
from tests.support.odd_envelopes import summing
from tests.support.plain_reader import read_table
from tests.support.proven import PROVEN_OR_LOST
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from lockstep.integrity.base import IntegrityClass
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

CLASSES: dict[str, IntegrityClass] = {
    "none": NoIntegrity(),
    "once": Once(keep_ids=10),
    "ordered": Ordered(session_start=SessionStart.FIRST_MESSAGE),
}
RAISED = "transform raised"
UNFIT = "value not storable"
NANOSECONDS = 1_700_000_000_000_000_000
ODD: dict[str, tuple[dict[str, object], str, str]] = {
    "a number for a session": ({"session": 5, "n": 1}, RAISED, "Envelope.session = 5 is of type int, not str"),
    "no session": ({"n": 1}, RAISED, "Envelope.session = None is of type NoneType, not str"),
    "no envelope": ({"nothing": True}, RAISED, "'NoneType' object has no attribute 'kind'"),
    "a text for a kind": (
        {"session": "a", "kind": "update", "n": 1},
        RAISED,
        "Envelope.kind = 'update' is of type str",
    ),
    "a lone surrogate in a session": ({"session": "\ud800", "n": 1}, UNFIT, "can't encode character '\\ud800'"),
    "an event time in nanoseconds": (
        {"session": "a", "n": 1, "time_us": NANOSECONDS},
        UNFIT,
        f"Envelope.event_time_us = {NANOSECONDS} is not between 0001-01-03 and 9999-12-31 (UTC)",
    ),
    "a fraction for an event time": (
        {"session": "a", "n": 1, "time_us": 1.5},
        RAISED,
        "Envelope.event_time_us = 1.5 is of type float, not int",
    ),
}


def sent(odd: dict[str, object]) -> list[bytes]:
    plain: list[dict[str, object]] = [{"session": session, "n": 1} for session in ("a", "b")]
    return [json.dumps(message).encode() for message in (*plain, odd, *plain, *plain)]


@pytest.mark.parametrize("name", keep_usual(("ordered",), CLASSES))
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_envelope_is_kept_with_its_reason_and_the_stream_goes_on(
    feed: Feed, runs: LocalRuns, name: str, odd: str
) -> None:
    """No task ends with "the fold is not deterministic" or UnicodeEncodeError."""
    message, cause, reason = ODD[odd]
    runs = runs.of(summing(feed.pattern, CLASSES[name]))
    topic = feed.create("values")
    feed.send(topic, sent(message))
    runs.run()
    (kept,) = [row for row in DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist() if row["offset"] == 2]
    assert (kept["cause"], reason in kept["found"]) == (cause, True), kept["found"]
    assert read_table(runs.folders.table)["_offset"].to_pylist()[-2:] == [5, 6]
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka, None)
    assert (found.status in PROVEN_OR_LOST, found.violations) == (True, ())


def test_a_halt_at_a_session_of_lone_surrogates_is_committed(feed: Feed, runs: LocalRuns) -> None:
    runs = runs.of(summing(feed.pattern, Strict(evidence=LogOnly())))
    topic = feed.create("values")
    feed.send(topic, [json.dumps({"session": "\ud800", "n": 1}).encode()])
    with pytest.raises(IntegrityLost, match=r"unknown session at .* session '\\\\ud800'"):
        runs.run()


def test_a_halt_at_an_event_time_in_nanoseconds_names_it(feed: Feed, runs: LocalRuns) -> None:
    strict = Strict(evidence=LogOnly(), session_start=SessionStart.FIRST_MESSAGE)
    runs = runs.of(summing(feed.pattern, strict))
    topic = feed.create("values")
    feed.send(topic, [json.dumps({"session": "a", "n": 1, "time_us": NANOSECONDS}).encode()])
    with pytest.raises(IntegrityLost, match=rf"value not storable at .*session 'a' .*event_time_us = {NANOSECONDS}"):
        runs.run()
