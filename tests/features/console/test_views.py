"""Cards and views from generated facts: the state, the rates, and whether rows are missing."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from lockstep.control.live_report import LiveBatch, LiveReport, LiveTopic
from lockstep.features.console.server import FILES, STATIC
from lockstep.features.console.views import (
    CheckedRule,
    CheckVerdict,
    KnownStream,
    ShownState,
    StreamCard,
    StreamDeclaration,
    StreamDetail,
    StreamView,
    WriterSnapshot,
    find_state,
    judge_completeness,
    make_card,
    make_view,
)
from lockstep.model.state_loss import LossTotal
from lockstep.operations.alarms import HealthFacts, TopicHalt
from lockstep.operations.inspect.partition_figures import PartitionFigures
from lockstep.operations.last_proof import LastProof
from lockstep.table.head import Desired
from lockstep.table.losses import LostStates

NOW = 1_800_000_000.0
DECLARED = StreamDeclaration(
    name="books", topics="books", integrity="Ordered()", trigger="Every(seconds=1)", description=""
)
REPORT = LiveReport(
    epoch=4,
    run_id="r",
    cause="c",
    claimed_at=NOW - 60,
    topics=(LiveTopic("books.a", (0, 1), (5, 2), (1_799_999_999_000, 0)), LiveTopic("books.b", (0,), (9,), (0,))),
)


def facts(desired: Desired | None = Desired.RUNNING, **more: object) -> HealthFacts:
    """Return the health of the stream."""
    return msgspec.structs.replace(HealthFacts(stream="books", desired=desired), **more)


def figures(topic: str, lag: int, expired: int = 0) -> PartitionFigures:
    """Return a partition as a poll of Kafka reports it."""
    return PartitionFigures(topic=topic, partition=0, lag_messages=lag, headroom_seconds=None, expired_messages=expired)


@pytest.mark.parametrize(
    ("desired", "is_alive", "has_report", "is_degraded"),
    list(itertools.product([None, *Desired], [True, False], [True, False], [True, False])),
)
def test_the_state_follows_the_desired_state_and_the_writer(
    desired: Desired | None, *, is_alive: bool, has_report: bool, is_degraded: bool
) -> None:
    halted = (TopicHalt("books.a", "x"),) if is_degraded else ()
    live = WriterSnapshot(is_alive, REPORT if has_report else None)
    state = find_state(KnownStream(declared=DECLARED, live=live, facts=facts(desired, halted_topics=halted)))
    resting = {Desired.HALTED: "halted", Desired.STOPPED: "stopped", Desired.HELD: "held"}
    if desired is None:
        assert state.value == ("starting" if is_alive else "no table yet")
    elif desired in resting:
        assert state.value == resting[desired]
    elif not is_alive:
        assert state.value == ("ended" if desired is Desired.BOUNDED else "no writer")
    elif is_degraded:
        assert state is ShownState.DEGRADED
    else:
        assert state is (ShownState.RUNNING if has_report else ShownState.STARTING)


def test_a_stream_that_was_not_read_yet_is_unknown_and_an_unreadable_one_says_why() -> None:
    card = make_card(KnownStream(declared=DECLARED), NOW)
    assert (card.state, card.lag_messages, card.topics) == (ShownState.UNKNOWN, None, None)
    broken = KnownStream(declared=DECLARED, facts=facts(None, reason="the log is damaged"))
    card = make_card(broken, NOW)
    assert (card.state, card.reason) == (ShownState.UNREADABLE, "the log is damaged")


def test_lag_is_that_of_the_writer_and_without_one_that_of_kafka() -> None:
    polled = facts(partitions=(figures("books.a", 70), figures("books.new", 30)))
    alive = make_view(KnownStream(declared=DECLARED, live=WriterSnapshot(True, REPORT), facts=polled), NOW)  # noqa: FBT003
    assert (alive.card.lag_messages, alive.card.topics, alive.waiting) == (16, 2, ("books.new",))
    assert alive.card.newest_at == 1_799_999_999.0
    dead = make_view(KnownStream(declared=DECLARED, live=WriterSnapshot(False, REPORT), facts=polled), NOW)  # noqa: FBT003
    assert (dead.card.lag_messages, dead.card.topics, dead.card.messages) == (100, 2, None)
    unknown = msgspec.structs.replace(polled, kafka="no answer", partitions=())
    assert make_card(KnownStream(declared=DECLARED, facts=unknown), NOW).lag_messages is None


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_is_complete_only_if_nothing_is_missing(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # repeatable
    lost, expired, quarantined, broken, violated = (chance.random() < 0.3 for _ in range(5))
    counts = LostStates(total=LossTotal(2, 9), open=LossTotal(2, 9) if lost else LossTotal())
    known = facts(
        lost=counts,
        partitions=(figures("books.a", 3, expired=7 if expired else 0),),
        quarantined_messages=11 if quarantined else 0,
    )
    check = CheckVerdict(at=NOW, holds=not broken, completeness_percent=99.999, rules=())
    proof = LastProof(at=NOW, status="violated" if violated else "proven", batch=3, version=4, violations=5)
    found = judge_completeness(known, StreamDetail(check=check, proof=proof))
    assert found.is_complete is not any((lost, expired, quarantined, broken, violated))
    evidence = {
        "2 sessions lost": lost,
        "7 offsets": expired,
        "11 messages are in quarantine": quarantined,
        "a broken rule": broken,
        "5 violations": violated,
        "proven up to batch 3": not violated,
        "99.999 %": True,
    }
    assert {text: text in found.sentence for text in evidence} == evidence


def test_without_a_proof_the_answer_says_so() -> None:
    assert "not verified yet" in judge_completeness(facts(), StreamDetail()).sentence


@pytest.mark.parametrize("kind", [StreamCard, StreamView, StreamDetail, CheckedRule, StreamDeclaration])
def test_the_scripts_read_each_field_by_its_name(kind: type[msgspec.Struct]) -> None:
    scripts = "".join(path.read_text() for path in STATIC.glob("*.js"))
    assert [name for name in kind.__struct_fields__ if name not in scripts] == []


def test_the_scripts_read_the_fields_of_a_batch_by_their_places() -> None:
    fields = ["committed_at", "messages", "rows", "plan_seconds", "task_seconds", "check_seconds", "commit_seconds"]
    places = [LiveBatch.__struct_fields__.index(name) for name in (*fields, "freshness_seconds")]
    listed = "[AT, MESSAGES, ROWS, PLAN, TASKS, CHECKS, COMMIT, FRESHNESS]"
    assert f"const {listed} = {places};" in (STATIC / "stream.js").read_text()


def test_each_file_of_the_page_is_served() -> None:
    assert {path.name for path in STATIC.iterdir()} == set(FILES)
