"""Deliveries to topics of a real broker: each row once, in order, killed at any step; named refusals."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from lockstep.delivery import DeliveryFenced, FirstRows, TargetInterrupted, TargetRefused
from lockstep.errors import DeclarationError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.delivery import deliver as delivering_run
from lockstep.features.delivery import kafka_message
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.deliver import run_delivery as deliver
from lockstep.features.delivery.events import read_history
from lockstep.features.delivery.kafka_message import OutgoingMessage, choose_partition
from lockstep.features.delivery.kafka_target import KafkaConnection
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.prove import prove_deliveries
from lockstep.features.delivery.status import plan_delivery
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.features.delivery.targets import open_target as connect
from lockstep.features.history.rewind import rewind_stream
from lockstep.operations.lifecycle import close_hour
from lockstep.table.follower_positions import FollowerName, read_position
from lockstep.verify.report import FollowerProof, InvariantStatus
from tests.features.delivery.delivering import (
    PARTITIONS,
    UNLUCKY,
    assert_delivered,
    create_target,
    declare,
    is_positive,
    is_wanted,
    read_messages,
    read_rows,
    read_topic,
    run_delivery,
    send,
    to_doubled,
    to_large,
)
from tests.features.delivery.killed_delivery import STEPS, TRANSACTION_ROWS
from tests.support.feed import ProducerRecord
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

pytestmark = pytest.mark.usefixtures("source")


@pytest.fixture
def source(feed: Feed, runs: LocalRuns) -> str:
    """A topic of two partitions with the rows of three sessions in two batches."""
    topic = feed.create("values", 2)
    send(feed, topic, "pqr", 4)
    runs.run()
    send(feed, topic, "pqr", 3, first=6)
    runs.run()
    return topic


@pytest.fixture
def target(feed: Feed) -> str:
    """The target topic, which the stream does not read."""
    return create_target(feed)


def check(feed: Feed, runs: LocalRuns, target: str) -> None:
    """Assert that the topic has each row of the table once, in order, and that the proof agrees."""
    assert_delivered(read_topic(feed.bootstrap_servers, target, PARTITIONS), read_rows(runs.folders))
    (proof,) = prove(runs, declare(runs.stream, target))
    assert (proof.status, proof.reason) == (InvariantStatus.PROVEN, "")


def prove(runs: LocalRuns, declared: DeclaredDelivery) -> list[FollowerProof]:
    return list(prove_deliveries(declared.stream, runs.folders, runs.settings.kafka))


def test_each_row_arrives_once_and_a_further_run_adds_what_is_new(
    feed: Feed, runs: LocalRuns, source: str, target: str
) -> None:
    first = run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    assert (first.rows, first.delivered, first.batch) == (42, 42, 2)
    check(feed, runs, target)
    assert run_delivery(runs, target).rows == 0
    send(feed, source, "pqr", 2, first=9)
    runs.run()
    close_hour(runs.folders)
    compact_stream(runs.folders)
    assert run_delivery(runs, target).rows == 12
    check(feed, runs, target)
    assert plan_delivery(declare(runs.stream, target), runs.settings.table_root).behind == 0
    position = read_position(runs.settings.table_root, FollowerName("delivery", "readings"))
    assert position is not None
    assert (position.sources[0].batch, position.failure) == (3, "")


def test_functions_choose_and_make_the_rows(feed: Feed, runs: LocalRuns, target: str) -> None:
    run_delivery(runs, target, where=is_positive, select=to_doubled)
    arrived = read_topic(feed.bootstrap_servers, target, PARTITIONS)
    wanted = {
        identity: (key, {"name": key, "value": row["value"] * 2, "total": row["total"]})
        for identity, (key, row) in read_rows(runs.folders).items()
        if row["value"] > 0
    }
    assert_delivered(arrived, wanted)
    assert 0 < len(wanted) < 42
    (proof,) = prove(runs, declare(runs.stream, target, where=is_positive, select=to_doubled))
    assert proof.status is InvariantStatus.PROVEN
    (other,) = prove(runs, declare(runs.stream, target, where=is_positive))
    assert (other.status, "made by other functions" in other.reason) == (InvariantStatus.NOT_PROVEN, True)


def test_a_delivery_of_new_rows_starts_after_the_newest_batch(
    feed: Feed, runs: LocalRuns, source: str, target: str
) -> None:
    assert run_delivery(runs, target, first_rows=FirstRows.NEW).rows == 0
    send(feed, source, "pqr", 2, first=9)
    runs.run()
    assert run_delivery(runs, target, first_rows=FirstRows.NEW).rows == 12
    assert {each.batch for each in read_topic(feed.bootstrap_servers, target, PARTITIONS)} == {3}


def test_a_delivery_that_is_killed_at_each_step_in_turn_is_continued(feed: Feed, runs: LocalRuns, target: str) -> None:
    for step in STEPS:
        kill_at(feed, runs, target, step, 1)
    run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    check(feed, runs, target)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_delivery_that_is_killed_at_any_step_is_continued(
    feed: Feed, runs: LocalRuns, target: str, step: str
) -> None:
    codes = run_killed(feed, runs, target, [(step, writes) for writes in (2, 1, 1, 2, 1, 1, 2, 1, 1, 4)])
    assert codes == [-signal.SIGKILL] * 10
    run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    check(feed, runs, target)


@pytest.mark.slow
def test_a_hundred_random_kills_leave_each_row_once(feed: Feed, runs: LocalRuns, source: str, target: str) -> None:
    chosen = random.Random(54)  # noqa: S311  # no secret
    send(feed, source, "pqr", 200, first=9)
    runs.run()
    codes = run_killed(feed, runs, target, [(chosen.choice(STEPS), chosen.randint(1, 5)) for _ in range(100)])
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) > 50
    run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    check(feed, runs, target)


def run_killed(feed: Feed, runs: LocalRuns, target: str, steps: Sequence[tuple[str, int]]) -> list[int]:
    """Run deliveries in sequence, each in a process that dies at a step, and return the exit codes."""
    spelled = ",".join(f"{step}:{writes}" for step, writes in steps)
    place = (feed.bootstrap_servers, str(runs.settings.table_root), feed.pattern, target)
    command = [sys.executable, "-m", "tests.features.delivery.killed_delivery", *place, spelled]
    done = subprocess.run(command, capture_output=True, timeout=800, check=True)
    return [int(line) for line in done.stdout.split()]


def kill_at(feed: Feed, runs: LocalRuns, target: str, step: str, writes: int) -> None:
    with start_child(feed, runs, target, step, writes) as killed:
        killed.communicate(timeout=600)
    assert killed.returncode == -signal.SIGKILL


def start_child(
    feed: Feed, runs: LocalRuns, target: str, step: str, writes: int, gate: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a delivery in a process that dies or waits at a step."""
    place = (feed.bootstrap_servers, str(runs.settings.table_root), feed.pattern, target)
    command = [sys.executable, "-m", "tests.features.delivery.killed_delivery", *place, step, str(writes)]
    return subprocess.Popen([*command, *([str(gate)] if gate else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_zombie_with_an_open_transaction_is_fenced_and_repeats_nothing(
    feed: Feed, runs: LocalRuns, target: str, tmp_path: Path
) -> None:
    zombie = start_child(feed, runs, target, "sent", 3, tmp_path)
    wait_until((tmp_path / "reached").exists, "the zombie")
    assert run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS).delivered == 42
    (tmp_path / "go").touch()
    _, errors = zombie.communicate(timeout=600)
    assert zombie.returncode != 0
    assert b"DeliveryFenced" in errors
    check(feed, runs, target)


def test_the_first_of_two_claims_can_write_no_more(runs: LocalRuns, target: str) -> None:
    declared = declare(runs.stream, target)
    run_delivery(runs, target)
    first = connect(declared, runs.settings)
    assert first.token is not None
    first.write((), first.token)
    second = connect(declared, runs.settings)
    second.write((), first.token)
    with pytest.raises(DeliveryFenced):
        first.write((), first.token)
    assert second.token is not None
    assert second.token.epoch == 3


def test_an_unknown_outcome_of_a_commit_is_settled_by_the_token(
    feed: Feed, runs: LocalRuns, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = KafkaConnection._commit  # noqa: SLF001  # its response is lost
    lost = [False, True, False, True]

    def lose_answer(self: KafkaConnection) -> None:
        commit(self)
        if lost and lost.pop(0):
            raise TargetInterrupted("readings", "the answer was lost")

    monkeypatch.setattr(KafkaConnection, "_commit", lose_answer)
    done = run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    assert done.claims == 3
    check(feed, runs, target)


def test_a_bounded_run_gives_up_after_some_claims_and_names_the_failure_in_its_position(
    runs: LocalRuns, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TargetInterrupted("readings", "no answer")

    monkeypatch.setattr(delivering_run, "BACK_OFF_SECONDS_MAX", 0.01)
    monkeypatch.setattr(KafkaConnection, "_commit", refuse)
    with pytest.raises(TargetInterrupted):
        run_delivery(runs, target)
    position = read_position(runs.settings.table_root, FollowerName("delivery", "readings"))
    assert position is not None
    assert position.failure == "TargetInterrupted"


def test_a_run_that_follows_delivers_each_batch_until_it_is_stopped(
    feed: Feed, runs: LocalRuns, source: str, target: str
) -> None:
    stop = threading.Event()
    results = list[int]()
    declared = declare(runs.stream, target)

    def follow() -> None:
        results.append(deliver(declared, runs.settings, stop=stop, follows=True).rows)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        for number in range(3):
            send(feed, source, "pqr", 1, first=9 + number)
            runs.run()
        rows = read_rows(runs.folders)
        wait_until(lambda: len(read_topic(feed.bootstrap_servers, target, PARTITIONS)) == len(rows), "the rows")
    finally:
        stop.set()
        follower.join(60)
    assert results == [len(rows)]
    check(feed, runs, target)


def test_a_rewind_before_the_position_halts_by_name_and_can_be_accepted(
    feed: Feed, runs: LocalRuns, target: str
) -> None:
    run_delivery(runs, target)
    before = read_topic(feed.bootstrap_servers, target, PARTITIONS)
    rewind_stream(runs.handle, "1", who="a test", why="wrong rows")
    for _ in range(2):
        with pytest.raises(DeliveryHalted) as halted:
            run_delivery(runs, target)
        assert halted.value.reason is HaltReason.UNDONE
        assert "batches 2 to 2" in halted.value.problem
    assert read_topic(feed.bootstrap_servers, target, PARTITIONS) == before
    assert "undone" in plan_delivery(declare(runs.stream, target), runs.settings.table_root).problem
    runs.run()
    run_delivery(runs, target, accepts=True)
    after = read_topic(feed.bootstrap_servers, target, PARTITIONS)
    counting = [each for each in after if each.batch != 2]
    assert_delivered(counting, read_rows(runs.folders))
    assert [each for each in after if each.batch == 2] == [each for each in before if each.batch == 2]
    (proof,) = prove(runs, declare(runs.stream, target))
    assert (proof.status, "undone" in proof.reason) == (InvariantStatus.NOT_PROVEN, True)
    events = [each.event for each in read_history(runs.settings.table_root, "readings").events]
    assert events == ["accepted", "halted", "claimed"]


def test_a_rewind_behind_the_position_is_no_halt(feed: Feed, runs: LocalRuns, target: str) -> None:
    rewind_stream(runs.handle, "1", who="a test", why="wrong rows")
    run_delivery(runs, target)
    rewind_to_now = runs.run()
    assert rewind_to_now is not None
    run_delivery(runs, target)
    check(feed, runs, target)


def test_a_topic_that_grew_is_refused_by_name_and_keeps_its_rows(feed: Feed, runs: LocalRuns, target: str) -> None:
    run_delivery(runs, target)
    feed.grow(target, PARTITIONS + 1)
    with pytest.raises(TargetRefused, match=rf"topic {target} had 3 partitions, and has 4"):
        run_delivery(runs, target)


def test_a_topic_that_is_missing_or_was_created_again_is_refused_by_name(
    feed: Feed, runs: LocalRuns, target: str
) -> None:
    with pytest.raises(TargetRefused, match="topic no_such_topic does not exist"):
        run_delivery(runs, "no_such_topic")
    run_delivery(runs, target)
    feed.delete(target)
    create_target(feed)
    with pytest.raises(TargetRefused, match="was deleted and created again"):
        run_delivery(runs, target)


def test_a_topic_of_another_delivery_is_refused_by_name(runs: LocalRuns, target: str) -> None:
    run_delivery(runs, target)
    other = declare(runs.stream, target)
    object.__setattr__(other.delivery, "name", "others")
    with pytest.raises(TargetRefused, match="is the target of delivery readings"):
        deliver(other, runs.settings, stop=threading.Event())


def test_a_topic_that_the_stream_reads_is_refused_when_declared(runs: LocalRuns, source: str) -> None:
    with pytest.raises(DeclarationError, match="that the stream itself reads"):
        declare(runs.stream, source)


def test_a_token_topic_that_loses_tokens_is_refused(feed: Feed, runs: LocalRuns, target: str) -> None:
    beside = type(feed)(feed.bootstrap_servers, target)
    beside.create("tokens", 1)
    with pytest.raises(TargetRefused, match=r"has cleanup.policy delete"):
        run_delivery(runs, target)


def test_a_row_at_which_a_function_fails_halts_with_its_identity(feed: Feed, runs: LocalRuns, target: str) -> None:
    first = min(identity for identity, (_, row) in read_rows(runs.folders).items() if row["value"] == UNLUCKY)
    for _ in range(2):
        with pytest.raises(DeliveryHalted, match="ValueError: unlucky") as halted:
            run_delivery(runs, target, where=is_wanted)
        assert (halted.value.reason, "/".join(map(str, first)) in halted.value.problem) == (HaltReason.ROW, True)
    run_delivery(runs, target)
    assert_delivered(read_topic(feed.bootstrap_servers, target, PARTITIONS), read_rows(runs.folders))


def test_a_row_that_is_too_large_for_kafka_halts_with_its_identity(runs: LocalRuns, target: str) -> None:
    first = min(identity for identity, (_, row) in read_rows(runs.folders).items() if row["value"] == UNLUCKY)
    with pytest.raises(DeliveryHalted, match="larger than Kafka takes") as halted:
        run_delivery(runs, target, select=to_large)
    assert "/".join(map(str, first)) in halted.value.problem


def test_the_proof_finds_a_row_that_is_in_the_topic_twice(feed: Feed, runs: LocalRuns, target: str) -> None:
    run_delivery(runs, target)
    message = read_messages(feed.bootstrap_servers, target, PARTITIONS)[0]
    headers: Any = tuple(message.headers() or ())
    feed.append(target, [ProducerRecord(message.key(), message.value(), headers=headers)], message.partition() or 0)
    (proof,) = prove(runs, declare(runs.stream, target))
    assert proof.status is InvariantStatus.VIOLATED
    assert {"1 repeated", "1 disordered"} <= set(proof.reason.split("; first")[0].split(", "))


def test_the_proof_finds_rows_that_are_missing_changed_or_of_others(
    feed: Feed, runs: LocalRuns, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_message.MessageEncoder, "encode_all", damage(kafka_message.MessageEncoder.encode_all))
    run_delivery(runs, target)
    monkeypatch.undo()
    feed.append(target, [ProducerRecord("p", b"{}")], 0)
    (proof,) = prove(runs, declare(runs.stream, target))
    counts = set(proof.reason.split("; first")[0].split(", "))
    assert proof.status is InvariantStatus.VIOLATED
    assert counts >= {"1 missing", "1 extra", "1 changed", "1 foreign"}


def damage(encode_all: Callable[..., Iterator[OutgoingMessage]]) -> Callable[..., Iterator[OutgoingMessage]]:
    """Change the value of the third row and the identity of the fifth row."""
    count = itertools.count(1)

    def call(self: object, rows: object) -> Iterator[OutgoingMessage]:
        for made in encode_all(self, rows):
            number = next(count)
            if number == 3:
                yield made._replace(value=b'{"name":"x","value":0,"total":0}')
            elif number == 5:
                (name, identity), batch = made.headers
                yield made._replace(headers=[(name, identity + b"9"), batch])
            else:
                yield made

    return call


def test_an_open_transaction_of_another_delivery_delays_the_read_of_the_token(
    feed: Feed, runs: LocalRuns, source: str, target: str
) -> None:
    """A token behind it is not readable yet: a claim with an earlier token would repeat rows."""
    run_delivery(runs, target, transaction_rows=TRANSACTION_ROWS)
    other = type(feed)(feed.bootstrap_servers, f"other_{feed.family}").transactional()
    other.begin_transaction()
    other.produce(f"{target}.tokens", b"{}", b"another", 0)
    assert other.flush(30) == 0
    send(feed, source, "pqr", 2, first=9)
    runs.run()
    release = threading.Timer(2.0, other.commit_transaction)
    # the tokens behind the open transaction are committed, but a consumer cannot read them
    declared = declare(runs.stream, target)
    connection = claim_without_reading(declared, runs)
    connection.close()
    release.start()
    run_delivery(runs, target)
    release.join()
    check(feed, runs, target)


def claim_without_reading(declared: DeclaredDelivery, runs: LocalRuns) -> KafkaConnection:
    """Deliver with a claim that ignores the open transaction, and return the connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lockstep.features.delivery.kafka_tokens.TokenTopic.read_settled", lambda self: self.read_newest()
        )
        made = connect(declared, runs.settings)
    assert isinstance(made, KafkaConnection)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivering_run, "open_target", lambda *_: made)
        deliver(declared, runs.settings, stop=threading.Event())
    return made


def test_keys_have_the_partitions_of_kafkas_own_partitioner(feed: Feed, target: str) -> None:
    chosen = random.Random(7)  # noqa: S311  # no secret
    keys = [chosen.randbytes(length) for length in range(1, 60)]
    found = dict[bytes, int]()

    def note(_: object, message: object) -> None:
        found[message.key()] = message.partition()  # type: ignore[attr-defined]  # a message

    murmur = Producer({"bootstrap.servers": feed.bootstrap_servers, "partitioner": "murmur2", "log_level": 2})
    for key in keys:
        murmur.produce(target, b"", key, on_delivery=note)
    assert murmur.flush(30) == 0
    assert {key: choose_partition(key, PARTITIONS) for key in keys} == found
