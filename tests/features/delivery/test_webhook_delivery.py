"""Deliveries to a webhook: at least once, with ids by which a receiver ignores repetitions."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lockstep import Kind
from lockstep.declare.delivery import refuse_shared
from lockstep.delivery import (
    DeliveredRow,
    Delivery,
    DeliveryFenced,
    FirstRows,
    RowSource,
    TargetInterrupted,
    TargetRefused,
    UndeliverableRows,
    Webhook,
)
from lockstep.errors import DeclarationError
from lockstep.features.delivery import deliver as delivering
from lockstep.features.delivery.dead_letters import list_dead_letters
from lockstep.features.delivery.events import read_history
from lockstep.features.delivery.position import DeliveryHalted, VersionRead, make_first_token
from lockstep.features.delivery.rebuild import RebuildMethod, prepare_rebuild
from lockstep.features.delivery.status import plan_delivery
from lockstep.features.delivery.targets import DeclaredDelivery, open_target
from lockstep.features.delivery.webhook_request import (
    RETRY_AFTER_SECONDS_MAX,
    AnswerMeaning,
    decode_retry_after,
    encode_row,
    judge_status,
    make_request_key,
    split_rows,
)
from lockstep.features.delivery.webhook_target import WebhookState
from lockstep.http_request import send_json
from lockstep.model.decoding import decode_json
from lockstep.operations.stream_table import open_table
from lockstep.rules import InRange, InSet, NotNull, Unique, list_violated
from lockstep.settings import Settings
from lockstep.table.commit import Base
from lockstep.table.head import Head
from tests.features.delivery import killed_webhook
from tests.features.delivery.postgres_rows import make_row
from tests.features.delivery.receiver import (
    AUTHORIZATION,
    CANARY,
    SECRET,
    URL,
    Arrival,
    Handler,
    Receiver,
    accept,
    declare,
    deliver,
    receiving,
)
from tests.support.kept_stream import Row, keeping, message, script
from tests.support.offline_stream import Offline
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as server:
        monkeypatch.setenv(URL, server.url)
        monkeypatch.setenv(AUTHORIZATION, SECRET)
        yield server


@pytest.fixture
def offline(receiver: Receiver, tmp_path: Path) -> Offline:
    """Tables of a stream with four batches and four rows."""
    del receiver
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


def read_expected(offline: Offline) -> dict[str, dict[str, Any]]:
    """Return each row of the table by its id."""
    table_id = open_table(offline.folders).base().head.table_id
    names = ("_topic_id", "_partition", "_emit_offset", "_row")
    expected = dict[str, dict[str, Any]]()
    for row in read_table(offline.folders.table).to_pylist():
        identity = "/".join(str(row[name]) for name in names)
        value = {name: row[name] for name in ("name", "value", "total")}
        expected[f"{table_id}/1/{identity}"] = {"session": row["_session"], "topic": row["_topic"], "value": value}
    return expected


def _choose_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("session", "topic", "value")}


def assert_received(receiver: Receiver, offline: Offline) -> None:
    """Assert that the first arrivals are the rows of the table, ordered by source partition."""
    expected = read_expected(offline)
    first = {row["id"]: row for row in reversed(receiver.list_accepted())}
    assert {name: _choose_fields(row) for name, row in first.items()} == expected
    last = dict[str, tuple[int, int]]()
    for name in dict.fromkeys(receiver.list_ids()):
        source, offset, row = name.rsplit("/", 2)
        assert last.get(source, (-1, 0)) < (int(offset), int(row))
        last[source] = (int(offset), int(row))


def test_each_row_arrives_with_its_id_in_order_and_once_without_a_failure(receiver: Receiver, offline: Offline) -> None:
    done = deliver(offline, declare(offline, request_rows=3))
    assert (done.rows, [len(each.rows) for each in receiver.arrivals]) == (4, [3, 1])
    assert_received(receiver, offline)
    assert {each.headers["Authorization"] for each in receiver.arrivals} == {SECRET}
    assert len({each.key for each in receiver.arrivals}) == 2
    assert deliver(offline, declare(offline, request_rows=3)).rows == 0
    assert len(receiver.arrivals) == 2


def run_killed(offline: Offline, steps: list[str]) -> None:
    """Run the delivery once per step, and kill it there."""
    command = [sys.executable, "-m", "tests.features.delivery.killed_webhook", str(offline.root), ",".join(steps)]
    subprocess.run(command, check=True, timeout=100, stdout=subprocess.PIPE)


def assert_repeated(receiver: Receiver, repeated: int) -> None:
    """Assert the number of repeated rows, each with the key of its first request."""
    ids = receiver.list_ids()
    assert len(ids) - len(set(ids)) == repeated
    keys = {each.key: each.ids for each in receiver.arrivals}
    assert all(keys[each.key] == each.ids for each in receiver.arrivals)


def test_a_kill_repeats_rows_with_the_same_ids_and_loses_none(receiver: Receiver, offline: Offline) -> None:
    """The first and the third row are accepted, but their token is not written."""
    run_killed(offline, ["claimed:1", "accepted:1", "written:2", "accepted:2", "written:2", "position:1"])
    assert deliver(offline, declare(offline)).rows == 0
    assert_received(receiver, offline)
    assert_repeated(receiver, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_lose_no_row(receiver: Receiver, offline: Offline, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311  # no secret
    steps = [f"{chosen.choice(killed_webhook.STEPS)}:{chosen.randint(1, 3)}" for _ in range(10)]
    run_killed(offline, steps)
    deliver(offline, declare(offline))
    assert_received(receiver, offline)
    ids = receiver.list_ids()
    assert len(ids) - len(set(ids)) <= sum(step.startswith("accepted") for step in steps)


def close_connection(handler: Handler, _: Arrival) -> None:
    handler.connection.close()


def wait_long(handler: Handler, _: Arrival) -> None:
    time.sleep(1.5)
    handler.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def drip(handler: Handler, _: Arrival) -> None:
    for letter in itertools.cycle(b"HTTP/1.1 204 No Content"):
        time.sleep(0.02)
        handler.wfile.write(bytes([letter]))


def fail(handler: Handler, arrival: Arrival) -> None:
    handler.answer(arrival, 500)


INTERRUPTED = {
    close_connection: "it could not be reached",
    wait_long: "it did not answer within 1 s",
    drip: "it did not answer within 1 s",
    fail: "it answered 500",
}


@pytest.mark.parametrize("behave", INTERRUPTED)
def test_a_receiver_that_fails_is_tried_again_and_loses_no_row(
    receiver: Receiver, offline: Offline, behave: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivering, "BACK_OFF_SECONDS_MAX", 0.01)
    threads = threading.active_count()
    receiver.behave = behave
    declared = declare(offline, timeout_seconds=1.0 if behave in {wait_long, drip} else 60.0)
    with pytest.raises(TargetInterrupted, match=INTERRUPTED[behave]) as interrupted:
        deliver(offline, declared)
    assert len(receiver.arrivals) == delivering.ATTEMPTS_MAX
    assert len({each.key for each in receiver.arrivals}) == 1
    assert_no_secret(offline, interrupted.value, caplog)
    receiver.behave = accept
    assert deliver(offline, declare(offline)).rows == 4
    assert_received(receiver, offline)
    until = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.02)
    assert threading.active_count() <= threads  # a slow receiver leaves no thread behind


def test_the_pause_doubles_with_each_failure(
    receiver: Receiver, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(
        "lockstep.features.delivery.stop_order.StopSwitch.wait", lambda _, seconds: pauses.append(seconds)
    )
    receiver.behave = fail
    with pytest.raises(TargetInterrupted):
        deliver(offline, declare(offline))
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def assert_no_secret(offline: Offline, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    shown = [repr(error), str(error), *(each.getMessage() for each in caplog.records)]
    kept = [path.read_bytes().decode(errors="replace") for path in offline.root.rglob("*") if path.is_file()]
    assert not [each for each in (*shown, *kept) if CANARY in each]


def test_an_accepted_request_with_an_endless_body_is_accepted(receiver: Receiver, offline: Offline) -> None:
    def behave(handler: Handler, arrival: Arrival) -> None:
        handler.answer(arrival, 200)
        while True:
            handler.wfile.write(b"x" * 100_000)

    receiver.behave = behave
    began = time.monotonic()
    assert deliver(offline, declare(offline, timeout_seconds=60.0)).rows == 4
    assert time.monotonic() - began < 40


def redirect(status: int, url: str, handler: Handler, arrival: Arrival) -> None:
    handler.answer(arrival, status, Location=url)


def test_a_redirect_is_refused_and_no_other_address_gets_a_row(
    receiver: Receiver, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as other:
        for status in (301, 302, 303, 307, 308):
            receiver.behave = partial(redirect, status, other.url)
            with pytest.raises(
                TargetRefused, match=f"it answered {status}, a redirect, which is not followed"
            ) as refused:
                deliver(offline, declare(offline))
            assert f"correct env:{URL} and env:{AUTHORIZATION}" in refused.value.next_step
            assert_no_secret(offline, refused.value, caplog)
        assert (other.arrivals, receiver.list_ids()) == ([], [])


@pytest.mark.parametrize("status", [401, 403, 404, 405, 410])
def test_an_answer_about_address_or_rights_makes_no_dead_letter(
    receiver: Receiver, offline: Offline, status: int
) -> None:
    receiver.behave = lambda handler, arrival: handler.answer(arrival, status)
    with pytest.raises(TargetRefused, match=f"cannot be used: it answered {status}"):
        deliver(offline, declare(offline, undeliverable=UndeliverableRows.DEAD_LETTER))
    assert list_dead_letters(offline.folders.root, "alerts") == []
    receiver.behave = accept
    assert deliver(offline, declare(offline)).rows == 4
    assert_received(receiver, offline)


def refuse_name(handler: Handler, arrival: Arrival) -> None:
    """Refuse requests with a row of one name."""
    handler.answer(arrival, 422 if any(row["value"]["name"] == "z" for row in arrival.rows) else 200)


def test_a_refused_row_halts_and_accepted_rows_are_not_sent_again(receiver: Receiver, offline: Offline) -> None:
    receiver.behave = refuse_name
    for _ in range(3):
        with pytest.raises(DeliveryHalted, match="the webhook refuses it: it answered 422"):
            deliver(offline, declare(offline))
    accepted = receiver.list_ids()
    assert len(accepted) == len(set(accepted)) < 4
    receiver.behave = accept
    deliver(offline, declare(offline))
    assert_received(receiver, offline)
    assert len(receiver.list_ids()) == 4


def deliver_step(declared: DeclaredDelivery, root: Path, rows: list[DeliveredRow]) -> list[DeliveredRow]:
    """Write the rows of a step in threes, as a claim does. Return the rows left after a failure."""
    connection = open_target(declared, Settings(table_root=root))
    read = VersionRead(Base(0, Head(stream="s", cluster_id="c", table_id="t", epoch=1)), "")
    token = make_first_token(declared.delivery, "s", read) if connection.token is None else connection.token
    with contextlib.suppress(TargetInterrupted):
        connection.write((), token)
        while rows:
            last = rows[2].origin.identity if len(rows) > 3 else None
            connection.write(rows[:3], msgspec.structs.replace(token, last=last))
            rows = rows[3:]
    return rows


def test_accepted_rows_are_not_sent_again_behind_the_rows_of_further_batches(
    receiver: Receiver, tmp_path: Path
) -> None:
    """Until a write succeeds, each run plans a step of all batches: new rows may precede accepted rows."""
    chosen = random.Random(1)  # noqa: S311  # no secret
    answers = itertools.repeat(204)
    receiver.behave = lambda handler, arrival: handler.answer(arrival, next(answers, 503))
    declared = declare(Offline(keeping(), tmp_path), request_bytes=400)  # one request per row
    kept = set[str]()
    later = list[DeliveredRow]()
    step = list[DeliveredRow]()
    is_started = False
    for batch in range(1, 60):
        partition = chosen.randrange(5)
        for number in range(chosen.randint(0, 6)):
            row = make_row(Row("a", batch, number), 10 * batch + number, batch)
            origin = msgspec.structs.replace(row.origin, partition=partition)
            later.append(DeliveredRow(row.value, origin))
            kept.add(f"t/1/{origin.identity}")
        if not is_started:
            step = sorted([*step, *later], key=lambda each: each.origin.identity)
            later = []
        answers = itertools.repeat(204, chosen.choice([0, 1, 2, 100]))
        left = deliver_step(declared, tmp_path, step)
        is_started = bool(left) and (is_started or len(left) < len(step))
        erased = 1 if chosen.random() < 0.1 else 0
        kept -= {f"t/1/{each.origin.identity}" for each in left[:erased]}
        step = left[erased:]
    answers = itertools.repeat(204)
    assert deliver_step(declared, tmp_path, deliver_step(declared, tmp_path, step) + later) == []
    ids = receiver.list_ids()
    assert len(ids) == len(set(ids))
    assert kept <= set(ids)
    token = open_target(declared, Settings(table_root=tmp_path)).token
    assert token is not None
    assert decode_json(token.target_state, WebhookState).accepted == ()


def test_a_refused_row_becomes_a_dead_letter_and_the_others_arrive_once(receiver: Receiver, offline: Offline) -> None:
    receiver.behave = refuse_name
    declared = declare(offline, undeliverable=UndeliverableRows.DEAD_LETTER)
    assert deliver(offline, declared).rows == 3
    assert len(receiver.list_ids()) == len(set(receiver.list_ids())) == 3
    assert plan_delivery(declared, offline.folders.root).dead_letters == 1
    receiver.behave = accept
    prepared = prepare_rebuild(declared, Settings(table_root=offline.folders.root), replaces=True)
    assert (prepared.plan.method, prepared.plan.obstacles) == (RebuildMethod.REPEAT, ())
    assert prepared.commit().rows == 4
    assert set(receiver.list_ids()) == set(read_expected(offline))
    assert list_dead_letters(offline.folders.root, "alerts") == []


def test_a_rebuild_that_does_not_end_keeps_position_and_dead_letters(receiver: Receiver, offline: Offline) -> None:
    receiver.behave = refuse_name
    declared = declare(offline, undeliverable=UndeliverableRows.DEAD_LETTER, request_rows=1)
    deliver(offline, declared)
    answers = iter((200, 500))
    receiver.behave = lambda handler, arrival: handler.answer(arrival, next(answers))
    prepared = prepare_rebuild(declared, Settings(table_root=offline.folders.root), replaces=True)
    with pytest.raises(TargetInterrupted):
        prepared.commit()
    receiver.behave = accept
    receiver.arrivals.clear()
    assert deliver(offline, declared).rows == 0
    assert receiver.arrivals == []
    assert len(list_dead_letters(offline.folders.root, "alerts")) == 1


class Proxy(BaseHTTPRequestHandler):
    """A proxy that refuses every tunnel."""

    status = 407

    def do_CONNECT(self) -> None:
        """Refuse the tunnel."""
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Proxy]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "")
        yield Proxy
        server.shutdown()
        thread.join()


def test_a_proxy_that_refuses_the_tunnel_refuses_the_run_and_no_row(
    offline: Offline, proxy: type[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL, f"https://receiver.invalid/{CANARY}")
    declared = declare(offline, undeliverable=UndeliverableRows.DEAD_LETTER)
    for status in (407, 403, 400):
        monkeypatch.setattr(proxy, "status", status)
        with pytest.raises(TargetRefused, match=f"its proxy answered {status}") as refused:
            deliver(offline, declared)
        assert "correct the proxy of the environment" in refused.value.next_step
        assert CANARY not in str(refused.value)
    monkeypatch.setattr(proxy, "status", 502)
    monkeypatch.setattr(delivering, "ATTEMPTS_MAX", 1)
    with pytest.raises(TargetInterrupted, match="its proxy answered 502"):
        deliver(offline, declared)
    assert list_dead_letters(offline.folders.root, "alerts") == []


def to_large(row: Row, origin: RowSource) -> Row:
    """Make the name of one row larger than a request."""
    del origin
    return Row(row.name * 3_000 if row.name == "z" else row.name, row.value, row.total)


def test_a_row_larger_than_a_request_is_named_and_nothing_is_sent(receiver: Receiver, offline: Offline) -> None:
    with pytest.raises(DeliveryHalted, match=r"it has 3,\d+ bytes, and Webhook.request_bytes is 2,500"):
        deliver(offline, declare(offline, request_bytes=2_500, select=to_large))
    assert receiver.arrivals == []


def test_a_receiver_that_asks_for_a_pause_gets_it_in_the_next_run_too(
    receiver: Receiver, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "BACK_OFF_SECONDS_MAX", 0.01)
    monkeypatch.setattr(delivering, "ATTEMPTS_MAX", 1)
    receiver.behave = lambda handler, arrival: handler.answer(arrival, 503, Retry_After="2")
    with pytest.raises(TargetInterrupted) as interrupted:
        deliver(offline, declare(offline))
    asked = time.monotonic()
    assert interrupted.value.retry_seconds == 2
    receiver.behave = accept
    with pytest.raises(TargetInterrupted, match="it asked for a pause, which ends in"):
        deliver(offline, declare(offline))
    monkeypatch.setattr(delivering, "ATTEMPTS_MAX", 5)
    assert deliver(offline, declare(offline)).rows == 4
    assert time.monotonic() - asked > 1.8
    assert (len(receiver.arrivals), len(set(receiver.list_ids()))) == (2, 4)


def test_a_newer_claim_fences_an_earlier_one_and_keeps_the_position(receiver: Receiver, offline: Offline) -> None:
    declared = declare(offline)
    deliver(offline, declared)
    settings = Settings(table_root=offline.folders.root)
    first = open_target(declared, settings)
    second = open_target(declared, settings)
    token = second.token
    assert token is not None
    second.write((), token)
    with pytest.raises(DeliveryFenced):
        first.write([make_row(Row("x", 1, 1), 1)], token)
    assert len(receiver.arrivals) == 1
    assert deliver(offline, declared).rows == 0


def test_a_request_that_connects_after_its_time_limit_sends_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response would be ignored: each attempt would send the rows again."""
    connect = socket.create_connection

    def connect_late(*arguments: Any, **options: Any) -> socket.socket:
        time.sleep(0.5)
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", connect_late)
    assert send_json(receiver.url, b"{}", 0.1).problem
    time.sleep(1.0)
    assert receiver.arrivals == []
    assert send_json(receiver.url, b'{"rows": []}', 30.0).status == 204


def test_a_lost_position_of_new_rows_goes_back_to_the_first_start(receiver: Receiver, offline: Offline) -> None:
    declared = declare(offline, first_rows=FirstRows.NEW)
    assert deliver(offline, declared).rows == 0
    offline.run(*script())
    sent = deliver(offline, declared).rows
    assert sent > 0
    for path in (offline.folders.root / "_deliveries" / "alerts.claims").iterdir():
        path.unlink()
    assert deliver(offline, declared).rows == sent
    assert len(set(receiver.list_ids())) == sent


def test_a_lost_position_sends_all_rows_again_by_their_ids_and_notes_it(receiver: Receiver, offline: Offline) -> None:
    deliver(offline, declare(offline))
    (path,) = (offline.folders.root / "_deliveries" / "alerts.claims").iterdir()
    path.write_text("{broken")
    with pytest.raises(TargetRefused, match="cannot be decoded"):
        deliver(offline, declare(offline))
    for each in path.parent.iterdir():
        each.unlink()
    assert deliver(offline, declare(offline)).rows == 4
    assert_received(receiver, offline)
    assert "restored" in {each.event for each in read_history(offline.folders.root, "alerts").events}


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (URL, "", "nothing on this machine"),
        (URL, f"ftp://{CANARY}", "which has no http:// or https:// address"),
        (URL, f"https://{CANARY}/ü", "other characters than ASCII"),
        (AUTHORIZATION, "", "nothing on this machine"),
        (AUTHORIZATION, f"{CANARY}\r\nX: y", "more than one line"),
    ],
)
def test_a_wrong_secret_is_refused_by_its_location(
    offline: Offline, variable: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(TargetRefused, match=problem) as refused:
        deliver(offline, declare(offline))
    assert f"env:{variable}" in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "https://example.com"),
        ("url", "file:relative"),
        ("authorization", "Bearer x"),
        ("request_rows", 0),
        ("request_rows", 1_001),
        ("request_seconds", 21.0),
        ("request_bytes", 16_000_001),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", True),
    ],
)
def test_a_wrong_field_of_a_webhook_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=rf"Webhook\.{field}") as refused:
        Webhook(**{"url": "env:X", field: value})
    assert field not in {"url", "authorization"} or str(value) not in str(refused.value)


def test_two_deliveries_to_one_webhook_are_refused() -> None:
    target = Webhook(url="env:X")
    with pytest.raises(DeclarationError, match="is the target of a, too"):
        refuse_shared([Delivery(name="a", target=target), Delivery(name="b", target=target)])


@pytest.mark.parametrize("seed", range(20))
def test_requests_have_all_rows_in_order_within_both_limits(seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311  # no secret
    target = Webhook(url="env:X", request_rows=chosen.randint(1, 9), request_bytes=chosen.randint(400, 2_000))
    rows = [
        encode_row("id", make_row(Row("x" * chosen.randint(0, 200), 1, 1), offset), target)
        for offset in range(chosen.randint(0, 40))
    ]
    requests = list(split_rows(rows, target))
    assert list(itertools.chain.from_iterable(requests)) == rows
    for each in requests:
        assert 1 <= len(each) <= target.request_rows
        assert sum(len(bytes(row.encoded)) for row in each) <= target.request_bytes
    assert len({make_request_key(each) for each in requests}) == len(requests)


def test_each_status_has_a_meaning() -> None:
    retried = {0, 408, 409, 425, 429}
    refused = {401, 402, 403, 404, 405, 407, 410}
    for status in (0, *range(200, 600)):
        expected = AnswerMeaning.RETRY
        if 200 <= status < 300:
            expected = AnswerMeaning.ACCEPTED
        elif 300 <= status < 400 or status in refused:
            expected = AnswerMeaning.REFUSED
        elif 400 <= status < 500 and status not in retried:
            expected = AnswerMeaning.ROWS
        assert (status, judge_status(status)) == (status, expected)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("7", 7),
        ("9" * 5_000, RETRY_AFTER_SECONDS_MAX),
        ("-7", 0),
        ("soon", 0),
        ("\u0663", 0),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), 9),
        (format_datetime(NOW - timedelta(seconds=9), usegmt=True), 0),
        (format_datetime(NOW + timedelta(days=9), usegmt=True), RETRY_AFTER_SECONDS_MAX),
    ],
)
def test_a_pause_is_bounded_and_an_unreadable_one_is_none(header: str, seconds: float) -> None:
    assert decode_retry_after(header, NOW) == seconds


RULES = (InRange("value", at_most=2), InSet("name", {"x", "y"}), NotNull("note"))


class Noted(msgspec.Struct):
    name: str
    value: int
    note: str | None = None


class Alert(msgspec.Struct):
    """A row and the rules that it violates."""

    rules: list[str]
    row: Row


def is_violation(row: Row, origin: RowSource) -> bool:
    """Select rows that violate a rule."""
    del origin
    return bool(list_violated(RULES[:2], row))


def to_alert(row: Row, origin: RowSource) -> Alert:
    """Return the row with its rules."""
    del origin
    return Alert(list_violated(RULES[:2], row), row)


def test_rows_that_violate_a_rule_arrive_with_its_id(receiver: Receiver, offline: Offline) -> None:
    table = read_table(offline.folders.table).to_pylist()
    expected = sum(row["value"] > 2 or row["name"] == "z" for row in table)  # the rule
    declared = declare(offline, where=is_violation, select=to_alert)
    assert deliver(offline, declared).rows == expected > 0
    for row in receiver.list_accepted():
        value = row["value"]["row"]
        rules = ["value_in_range"] * (value["value"] > 2) + ["name_in_set"] * (value["name"] == "z")  # as above
        assert row["value"]["rules"] == rules


def test_violated_rules_are_those_that_one_row_decides() -> None:
    assert list_violated(RULES, Noted("z", 3)) == ["value_in_range", "name_in_set", "note_not_null"]
    assert list_violated(RULES, Noted("z", 3), removed="note") == []
    assert list_violated(RULES, Noted("x", 2, "")) == []
    with pytest.raises(DeclarationError, match="is not judged by one row"):
        list_violated([Unique("name")], Noted("x", 1))


def test_more_than_one_batch_and_restart_keep_the_order(receiver: Receiver, offline: Offline) -> None:
    chosen = random.Random(5)  # noqa: S311  # no secret
    for number in range(1, 8):
        kind = Kind.SNAPSHOT if number == 1 else Kind.UPDATE
        sent = [(session, message(kind, number, x=number, y=1)) for session in ("p", "q")]
        offline.run({"kept.one": sent[:1], "kept.two": sent[1:]})
        if chosen.random() < 0.5:  # half of the batches wait for a later run
            deliver(offline, declare(offline, request_rows=chosen.randint(1, 3)))
    deliver(offline, declare(offline))
    assert_received(receiver, offline)
    assert len(receiver.list_ids()) == len(set(receiver.list_ids()))


def test_stored_claims_do_not_grow(receiver: Receiver, offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "BACK_OFF_SECONDS_MAX", 0.01)
    receiver.behave = fail
    for _ in range(3):
        with pytest.raises(TargetInterrupted):
            deliver(offline, declare(offline))
    folder = offline.folders.root / "_deliveries" / "alerts.claims"
    assert len(list(folder.iterdir())) == 1
    assert msgspec.json.decode(next(folder.iterdir()).read_bytes())["epoch"] > 3
