"""The public test harness has the results of a run: the engine's own fold, gate and columns judge."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import msgspec
import pytest

import lockstep.testing
from lockstep import Kind, LockstepError
from lockstep.decoders import Function, MessagePack
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.testing import ACCEPT, Judgement, SentMessage, Verdict, run
from tests.unit.testing.panels import Closed, Message, Panel, Ping, Reading, Snapshot, Update, loose, panels

BEGIN = Snapshot(1, {"a": 1.0})


def test_rows_verdicts_and_states_of_typed_messages() -> None:
    ran = run(panels, BEGIN, Update(2, "b", 2.0), Update(3, "a", 5.0), key="p")
    assert [Reading("b", 2.0), Reading("a", 5.0)] == ran.rows
    assert ran.verdicts == [ACCEPT, ACCEPT, ACCEPT]
    assert {"p": Panel({"a": 5.0, "b": 2.0}, updates=2)} == ran.states
    assert ran.or_raise() is ran


def test_each_message_tells_its_place_and_its_own_rows() -> None:
    first, second = run(panels, SentMessage(value=BEGIN, timestamp_ms=7), Update(2, "b", 2.0), key="p").folded
    assert first.envelope is not None
    assert (first.envelope.kind, first.envelope.session, first.envelope.event_time_us) == (Kind.SNAPSHOT, "p", 7_000)
    assert ((), (Reading("b", 2.0),)) == (first.rows, second.rows)


def test_bytes_are_taken_as_a_producer_sent_them() -> None:
    sent = [b'{"type":"snapshot","seq":9,"values":{}}', b'{"type":"update","seq":10,"name":"a","value":1}']
    assert [Reading("a", 1.0)] == run(panels, *sent, key="p").rows


def test_keys_and_headers_of_one_message() -> None:
    other = SentMessage(value=Snapshot(5, {"x": 3.0}), key="q", headers=[("site", b"north")])
    ran = run(panels, BEGIN, other, SentMessage(value=Update(2, "a", 2.0), key=b"p"), key="p")
    assert [Reading("x", 3.0, "north"), Reading("a", 2.0)] == ran.rows
    assert {"p", "q"} == ran.states.keys()


def test_a_gap_is_the_last_verdict_and_the_finding_of_the_halt() -> None:
    ran = run(panels, BEGIN, Update(2, "a", 2.0), Update(4, "a", 4.0), Update(5, "a", 5.0), key="p", topic="panels.x")
    assert Verdict(Judgement.VIOLATION, "gap", "3", "4, missing 3") == ran.verdicts[-1]
    assert len(ran.folded) == 3
    assert {"p": Panel({"a": 2.0}, updates=1)} == ran.states
    assert str(ran.finding) == "gap at panels.x/0 offset 2, session 'p': expected 3, found 4, missing 3"
    with pytest.raises(IntegrityLost, match=r"gap at panels\.x/0 offset 2"):
        ran.or_raise()


def test_a_message_that_raises_leaves_no_trace() -> None:
    """The update changes the state and emits a row before its wrong total is detected."""
    ran = run(panels, BEGIN, Update(2, "a", 2.0, total=3.0), key="p")
    assert Verdict(Judgement.VIOLATION, "total", "2.0", "3.0") == ran.verdicts[-1]
    assert ([], {"p": Panel({"a": 1.0})}) == (ran.rows, ran.states)


def test_an_error_of_the_users_code_is_told_in_its_words() -> None:
    ran = run(loose, SentMessage(value=b'{"type":"closed","seq":1}', key=b"\xff"))
    assert (ran.verdicts[0].cause, "UnicodeDecodeError" in (ran.verdicts[0].found or "")) == ("transform raised", True)


def test_an_undecodable_message_is_refused_or_set_aside_as_the_class_says() -> None:
    sent: list[Message | bytes | SentMessage[Message]] = [
        BEGIN,
        b'{"type":"update","seq":2,"name":',
        SentMessage(value=None),
        Update(2, "a", 2.0),
    ]
    strict, best_effort = (run(stream, *sent, key="p") for stream in (panels, loose))
    assert (strict.verdicts[-1].cause, len(strict.folded)) == ("undecodable", 2)
    assert [verdict.judgement for verdict in best_effort.verdicts] == [
        Judgement.ACCEPT,
        Judgement.QUARANTINE,
        Judgement.QUARANTINE,
        Judgement.ACCEPT,
    ]
    assert [Reading("a", 2.0)] == best_effort.rows


def test_skipped_messages_and_the_end_of_a_session() -> None:
    ran = run(panels, BEGIN, Ping(), Closed(2), key="p")
    assert [verdict.cause for verdict in ran.verdicts] == ["", "skip", ""]
    assert ran.states == {}


def test_what_a_class_accepts_with_a_remark_is_shown() -> None:
    ran = run(loose, BEGIN, Update(5, "a", 2.0), key="p")
    assert (ran.verdicts[1].judgement, ran.verdicts[1].cause) == (Judgement.ACCEPT, "gap")
    assert ran.finding is None


def test_a_row_that_the_table_cannot_hold_is_refused_as_in_a_run() -> None:
    """JSON and Python can hold half of a surrogate pair, and a table cannot."""
    ran = run(panels, BEGIN, Update(2, "b", 1.0), b'{"type":"update","seq":3,"name":"\\ud800","value":1}', key="p")
    assert [Reading("b", 1.0)] == ran.rows
    assert ran.verdicts[-1].judgement is Judgement.VIOLATION


def test_messages_are_encoded_for_the_decoder_of_the_stream() -> None:
    packed = dataclasses.replace(panels, decoder=MessagePack())
    assert [Reading("a", 2.0)] == run(packed, BEGIN, Update(2, "a", 2.0), key="p").rows


def test_a_decoder_without_an_encoder_asks_for_bytes() -> None:
    own = dataclasses.replace(panels, decoder=Function(decode))
    assert {"p": Panel({"a": 1.0})} == run(own, msgspec.json.encode(BEGIN), key="p").states
    with pytest.raises(LockstepError, match="give the message as the bytes"):
        run(own, BEGIN, key="p")


def test_a_state_that_is_not_of_its_type_is_named() -> None:
    """Saved state must be loaded as it was stored: the harness examines it as a run does."""
    own = dataclasses.replace(panels, decoder=Function(decode_wrongly))
    finding = run(own, b"{}", key="p").finding
    assert finding is not None
    assert finding.cause == "state not storable"
    assert "state.values['a'] = 'no number' is of type str" in (finding.found or "")


def test_nothing_is_read_before_the_first_message() -> None:
    ran = run(panels)
    assert (ran.rows, ran.verdicts, ran.states, ran.finding) == ([], [], {}, None)


def test_the_surface_is_fixed_and_loads_neither_spark_nor_dagster() -> None:
    events = [
        "CRASH",
        "ChangedLookup",
        "RENUMBER",
        "RESTART",
        "Event",
        "Idle",
        "NewTopic",
        "Split",
        "ScriptLine",
        "parse",
        "read_messages",
    ]
    results = [
        "ACCEPT",
        "RejectedMessage",
        "Finding",
        "MessageResult",
        "Judgement",
        "RowWithOrigin",
        "RunResult",
        "SentMessage",
        "Verdict",
        "choose_rows",
        "run",
    ]
    assert sorted(lockstep.testing.__all__) == sorted([*events, *results])
    script = "import sys, lockstep.testing; print(*{'pyspark', 'dagster', 'great_expectations'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ""


def decode(value: bytes) -> Snapshot:
    return msgspec.json.decode(value, type=Snapshot)


def decode_wrongly(value: bytes) -> Snapshot:
    del value
    return Snapshot(1, {"a": "no number"})  # type: ignore[dict-item]  # as a careless decoder may return
