"""The page over HTTP: real Kafka and tables, a writer that commits, halts and dies, and refused requests."""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lockstep import Every
from lockstep.control.heartbeat import list_epochs
from lockstep.errors import EnvironmentProblem
from lockstep.features.console.server import FILES, ConsoleServer
from lockstep.features.console.watcher import ConsoleWatcher
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations.last_proof import keep_proof, read_last_proof
from lockstep.settings import KafkaSettings
from lockstep.verify.verify import verify_stream
from tests.support.feed import session, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

PATIENCE_SECONDS = 30.0
NEW_SECONDS = 2.0
"""The page shows a batch within this time of its commit."""


@contextmanager
def serving(watcher: ConsoleWatcher, origins: tuple[str, ...] = ()) -> Iterator[int]:
    """Serve the page and return its port."""
    server = ConsoleServer(watcher, "127.0.0.1", 0, origins)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def watching(port: int, path: str = "/api/events") -> Iterator[Iterator[dict[str, Any]]]:
    """Return the events that are pushed to a client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")

    def events() -> Iterator[dict[str, Any]]:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    try:
        yield events()
    finally:
        connection.close()


def wait_for(events: Iterator[dict[str, Any]], **fields: object) -> dict[str, Any]:
    """Return the first card of the stream's view with these values."""
    end = time.monotonic() + PATIENCE_SECONDS
    for event in events:
        card = event["view"]["card"]
        if all(card[name] == value for name, value in fields.items()):
            return dict(event["view"])
        assert time.monotonic() < end, (fields, card)
    raise AssertionError("the events have ended")


@contextmanager
def running(runs: LocalRuns) -> Iterator[Callable[[], None]]:
    """Run with a short trigger on a thread; the returned function ends the run."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: runs.run(trigger=Every(seconds=0.2), stop=stop), daemon=True)

    def end() -> None:
        stop.set()
        thread.join(PATIENCE_SECONDS)

    thread.start()
    try:
        yield end
    finally:
        end()


def count_messages(view: dict[str, Any]) -> int:
    return sum(each[2] for each in view["batches"])


def test_a_batch_is_shown_within_two_seconds_and_a_dead_writer_at_all(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=2)
    feed.send(topic, session(2))
    with (
        running(runs) as end,
        serving(ConsoleWatcher([runs.stream], runs.settings)) as port,
        watching(port, "/api/streams/adding/events") as events,
    ):
        view = wait_for(events, state="running", lag_messages=0)
        assert view["topics"][0][0] == topic
        assert (view["card"]["topics"], view["epoch"], view["cause"].partition(";")[2]) == (1, 1, " test")
        while count_messages(view) < len(session(2)):
            view = next(events)["view"]
        delays = list[float]()
        for number in range(4, 7):  # other tests may delay one of them
            feed.send(topic, [update(number, a=1)])
            sent_at = time.monotonic()
            messages = count_messages(view)
            while count_messages(view) == messages:
                view = next(events)["view"]
            delays.append(time.monotonic() - sent_at)
        assert min(delays) < NEW_SECONDS + 1.0  # a batch needs at most a second here
        assert count_messages(view) == len(session(2)) + 3
        end()
        wait_for(events, state="no writer", messages=None)


def test_a_halt_shows_its_evidence_and_the_next_command(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    feed.send(topic, [*session(2), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        runs.run()
    with (
        serving(ConsoleWatcher([runs.stream], runs.settings)) as port,
        watching(port, "/api/streams/adding/events") as events,
    ):
        view = wait_for(events, state="halted")
        while not view["detail"]["history"]:
            view = next(events)["view"]
    alarm = next(each for each in view["card"]["alarms"] if each["kind"] == "halted")
    assert (alarm["severity"], topic in alarm["problem"]) == ("error", True)
    assert "lockstep resume adding" in alarm["next_step"]
    assert [each["event"] for each in view["detail"]["history"]][-1] == "halted"


def test_the_last_proof_is_shown_with_its_batch(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(3))
    runs.run()
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    keep_proof(runs.folders, report)
    proof = read_last_proof(runs.folders)
    assert proof is not None
    assert (proof.status, proof.batch, proof.violations) == ("proven", report.batch, 0)
    with (
        serving(ConsoleWatcher([runs.stream], runs.settings)) as port,
        watching(port, "/api/streams/adding/events") as events,
    ):
        view = wait_for(events, state="ended")
        while view["detail"]["proof"] is None:
            view = next(events)["view"]
    assert (view["complete"]["is_complete"], view["detail"]["proof"]["batch"]) == (True, report.batch)


def test_one_stream_that_cannot_be_read_and_no_kafka_hide_nothing_of_the_others(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    never = dataclasses.replace(runs.stream, name="never")
    damaged = dataclasses.replace(runs.stream, name="damaged")
    log = runs.root / "tables" / "damaged" / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.2)
    watcher = ConsoleWatcher([runs.stream, never, damaged], runs.settings.model_copy(update={"kafka": nowhere}))
    watcher.poll_writers()
    watcher.poll_tables()
    cards = {card.name: card for card in watcher.list_cards(time.time())}
    assert {name: card.state.value for name, card in cards.items()} == {
        "adding": "ended",
        "never": "no table yet",
        "damaged": "unreadable",
    }
    assert [alarm.kind for alarm in cards["adding"].alarms] == ["kafka"]
    assert cards["adding"].lag_messages is None


def test_nothing_is_read_while_nobody_watches(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    polls = []

    class Counting(ConsoleWatcher):
        def poll_writers(self) -> None:
            polls.append("writers")
            super().poll_writers()

        def poll_tables(self) -> None:
            polls.append("tables")
            super().poll_tables()

    with serving(Counting([runs.stream], runs.settings)) as port:
        assert ask(port, "/")[0] == 200
        time.sleep(1.5)
        assert polls == []
        with watching(port) as events:
            next(events)
            time.sleep(2.5)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while polls[-1:] and time.monotonic() < deadline:
            seen = len(polls)
            time.sleep(3.0)
            if len(polls) == seen:
                break
        assert {"writers", "tables"} == set(polls)
        assert len(polls) == seen


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_changes_anything(runs: LocalRuns, method: str) -> None:
    with serving(ConsoleWatcher([runs.stream], runs.settings)) as port:
        for path in ("/", "/api/events", "/api/streams/adding/events", "/static/console.js"):
            assert ask(port, path, method, Content_Type="application/json")[0] == 405
    assert not list_epochs(runs.folders.control)


def test_only_declared_names_and_the_files_of_the_page_are_answered(runs: LocalRuns) -> None:
    with serving(ConsoleWatcher([runs.stream], runs.settings)) as port:
        for name, kind in FILES.items():
            status, headers, _ = ask(port, f"/static/{name}")
            assert (status, headers["content-type"]) == (200, kind)
            assert "default-src 'none'" in headers["content-security-policy"]
        for path in (
            *("/static/server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static/", "/etc/passwd"),
            *("/api/streams/other/events", "/api/streams/..%2f..%2fetc/events", "/api/streams/other/quarantine/a/0/1"),
            *("/api/streams/adding/quarantine/a/x/1", "/api/streams/adding/quarantine/a/0/-1"),
        ):
            assert ask(port, path)[0] == 404, path
        status, _, text = ask(port, "/api/streams/adding/quarantine/a/0/1")
        assert (status, "Traceback" in text) == (200, False)


def test_names_of_other_sites_are_refused(runs: LocalRuns) -> None:
    with serving(ConsoleWatcher([runs.stream], runs.settings), ("https://console.example",)) as port:
        assert ask(port, "/", Host="evil.example")[0] == 421
        assert ask(port, "/api/events", Host=f"127.0.0.1:{port}", Origin="https://evil.example")[0] == 403
        assert ask(port, "/", Host="console.example")[0] == 200


def test_a_taken_port_is_named(runs: LocalRuns) -> None:
    watcher = ConsoleWatcher([runs.stream], runs.settings)
    with serving(watcher) as port, pytest.raises(EnvironmentProblem, match=f"port {port} of 127.0.0.1"):
        ConsoleServer(watcher, "127.0.0.1", port, ())
