"""Alarms from facts alone: facts on which a person must act, and facts that raise no alarm."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep import Every, FileSize, Objectives
from lockstep.control.heartbeat import Phase
from lockstep.kafka.open_transaction import OpenTransaction
from lockstep.model.state_loss import LossTotal
from lockstep.operations.alarms import (
    CLOCK_SECONDS_MAX,
    OF_KAFKA,
    WRITER_SECONDS_MAX,
    AlarmKind,
    AlarmSeverity,
    CompactionDebt,
    HealthFacts,
    TopicHalt,
    compute_patience_seconds,
    judge_health,
)
from lockstep.operations.followers import FollowerLag
from lockstep.operations.inspect.partition_figures import PartitionFigures
from lockstep.table.follower_positions import FollowerName
from lockstep.table.head import Desired
from lockstep.table.losses import NONE_LOST, BatchLosses, add_losses
from tests.support.adding_stream import adding

HOUR = 3_600.0
STREAM = replace(adding(r"a\..+"), objectives=Objectives(freshness=timedelta(minutes=5)))
WELL = HealthFacts(
    stream="adding",
    desired=Desired.RUNNING,
    reason="started",
    epoch=4,
    batch=42,
    writer=Phase.WRITING,
    writer_seconds=0.4,
    progress_seconds=3.0,
    freshness_seconds=2.0,
)


def partition(name: str = "a.b", **figures: Any) -> PartitionFigures:
    """Return a partition of a topic that keeps messages for a week; its lag is readable unless given otherwise."""
    given = {"lag_messages": 0, "headroom_seconds": 168 * HOUR, "retention_seconds": 168 * HOUR, **figures}
    return PartitionFigures(topic=name, partition=0, **{"readable_messages": given["lag_messages"], **given})


def waits(seconds: float, messages: int = 12, **figures: Any) -> PartitionFigures:
    """Return a partition whose first unread message has waited this long."""
    return partition(
        lag_messages=messages, waiting_seconds=seconds, **{"headroom_seconds": 168 * HOUR - seconds, **figures}
    )


def but(**changes: Any) -> HealthFacts:
    """Return a healthy stream, except for these facts."""
    return msgspec.structs.replace(WELL, **changes)


def follows(**changes: Any) -> FollowerLag:
    """Return a follower that has read everything."""
    name = FollowerName("derived", "activity")
    given = {"unread_batches": 0, "last_run_seconds": 60.0, **changes}
    return FollowerLag(name=name, command="lockstep derive activity", **given)


RESUME = "lockstep resume adding --fixed"
ERROR = AlarmSeverity.ERROR
WARNING = AlarmSeverity.WARNING
CASES: dict[str, tuple[HealthFacts, list[tuple[AlarmKind, AlarmSeverity]]]] = {
    "a healthy stream": (WELL, []),
    "a stream that never ran": (HealthFacts(stream="adding", desired=None), []),
    "messages that have just come": (but(partitions=(waits(4),)), []),
    "an idle topic, for years": (but(partitions=(partition(),), progress_seconds=1e8, freshness_seconds=1e8), []),
    "the first message after a year": (but(partitions=(waits(1),), progress_seconds=3e7, freshness_seconds=3e7), []),
    "old messages that are being read": (but(partitions=(waits(7200),)), [(AlarmKind.FRESHNESS, WARNING)]),
    "old messages, read again after a year's pause": (
        but(partitions=(waits(3e7, headroom_seconds=None),), progress_seconds=2.0),
        [(AlarmKind.FRESHNESS, WARNING)],
    ),
    "messages that nothing commits": (
        but(partitions=(waits(900),), progress_seconds=900.0),
        [(AlarmKind.STALLED, ERROR), (AlarmKind.FRESHNESS, ERROR)],
    ),
    "messages whose batch is within its deadline": (
        but(partitions=(waits(299),), progress_seconds=900.0, freshness_seconds=900.0),
        [],
    ),
    "only messages behind an open transaction": (
        but(partitions=(waits(900, readable_messages=0),), progress_seconds=900.0),
        [],
    ),
    "a dead stream": (but(writer_seconds=600.0), [(AlarmKind.NO_WRITER, ERROR)]),
    "a dead stream whose messages wait": (
        but(writer_seconds=600.0, partitions=(waits(600),), progress_seconds=610.0),
        [(AlarmKind.NO_WRITER, ERROR), (AlarmKind.FRESHNESS, ERROR)],
    ),
    "a stream that has ended and is started again": (but(writer=Phase.ENDED, writer_seconds=60.0), []),
    "a stream that has ended and does not come back": (
        but(writer=Phase.ENDED, writer_seconds=WRITER_SECONDS_MAX + 1),
        [(AlarmKind.NO_WRITER, ERROR)],
    ),
    "a stream without any heartbeat": (
        but(writer=None, writer_seconds=None, progress_seconds=WRITER_SECONDS_MAX + 1),
        [(AlarmKind.NO_WRITER, ERROR)],
    ),
    "a stream that was just resumed": (but(writer=None, writer_seconds=None, progress_seconds=60.0), []),
    "a bounded stream between its runs": (but(desired=Desired.BOUNDED, writer=Phase.ENDED, writer_seconds=1e6), []),
    "a bounded stream that misses its objective": (
        but(desired=Desired.BOUNDED, writer=Phase.ENDED, writer_seconds=1e6, partitions=(waits(600),)),
        [(AlarmKind.FRESHNESS, ERROR)],
    ),
    "commits of a clock that was ahead": (
        but(commit_ahead_seconds=CLOCK_SECONDS_MAX + 1, progress_seconds=0.0),
        [(AlarmKind.CLOCK, WARNING)],
    ),
    "a clock that differs a little": (but(commit_ahead_seconds=CLOCK_SECONDS_MAX, progress_seconds=0.0), []),
    "a follower whose last run failed": (
        but(followers=(follows(failure="DeriveFailed"),)),
        [(AlarmKind.FOLLOWER, WARNING)],
    ),
    "a follower that does not run, and has unread batches": (
        but(followers=(follows(unread_batches=1, last_run_seconds=3 * HOUR + 1),)),
        [(AlarmKind.FOLLOWER, WARNING)],
    ),
    "a follower that has just been overtaken": (but(followers=(follows(unread_batches=9, last_run_seconds=9.0),)), []),
    "a follower that does not run, without news": (but(followers=(follows(last_run_seconds=1e8),)), []),
    "a follower whose position is damaged": (
        but(damaged_followers=(FollowerName("export", "adding"),)),
        [(AlarmKind.FOLLOWER, WARNING)],
    ),
    "a stopped stream": (
        but(desired=Desired.STOPPED, writer_seconds=1e6, partitions=(waits(1e5),), unavailable=(("a.b", 0),)),
        [],
    ),
    "a held stream that is about to lose messages": (
        but(desired=Desired.HELD, writer_seconds=1e6, partitions=(waits(1e5, headroom_seconds=5 * HOUR),)),
        [(AlarmKind.HEADROOM, WARNING)],
    ),
    "a halted stream": (
        but(desired=Desired.HALTED, next_step=RESUME, partitions=(waits(1e5),)),
        [(AlarmKind.HALTED, ERROR)],
    ),
    "a halted stream that is about to lose messages": (
        but(desired=Desired.HALTED, next_step=RESUME, partitions=(waits(6e5, headroom_seconds=HOUR),)),
        [(AlarmKind.HALTED, ERROR), (AlarmKind.HEADROOM, ERROR)],
    ),
    "a short retention without lag": (but(partitions=(partition(headroom_seconds=60, retention_seconds=60),)), []),
    "a short retention, read in time": (but(partitions=(waits(9, headroom_seconds=51, retention_seconds=60),)), []),
    "a short retention, half of it over": (
        but(partitions=(waits(31, headroom_seconds=29, retention_seconds=60),)),
        [(AlarmKind.HEADROOM, WARNING)],
    ),
    "a short retention, nearly over": (
        but(partitions=(waits(52, headroom_seconds=8, retention_seconds=60),)),
        [(AlarmKind.HEADROOM, ERROR)],
    ),
    "messages past their retention": (
        but(partitions=(waits(61, headroom_seconds=-1, retention_seconds=60),)),
        [(AlarmKind.HEADROOM, ERROR)],
    ),
    "a retention without limit": (
        but(partitions=(waits(9, headroom_seconds=None, retention_seconds=None),)),
        [],
    ),
    "messages that are gone": (
        but(
            desired=Desired.STOPPED, partitions=(partition(lag_messages=9, headroom_seconds=None, expired_messages=9),)
        ),
        [(AlarmKind.EXPIRED, ERROR)],
    ),
    "a partition without a leader": (but(unavailable=(("a.b", 0),)), [(AlarmKind.LEADERLESS, ERROR)]),
    "a transaction of a minute": (but(transactions=(OpenTransaction("a.b", 0, 7, 8, 60.0),)), []),
    "a transaction that hangs": (
        but(transactions=(OpenTransaction("a.b", 0, 7, 8, 1e4),)),
        [(AlarmKind.OPEN_TRANSACTION, WARNING)],
    ),
    "some messages in quarantine": (but(quarantined_messages=5_000, quarantined_last_hour=100), []),
    "a quarantine that grows": (
        but(quarantined_messages=5_000, quarantined_last_hour=101),
        [(AlarmKind.QUARANTINE, WARNING)],
    ),
    "an hour that has just closed": (but(debt=CompactionDebt(1, 720, "2026-01-01T00", HOUR)), []),
    "hours that nothing compacts": (
        but(debt=CompactionDebt(7, 5040, "2026-01-01T00", 7 * HOUR)),
        [(AlarmKind.COMPACTION, WARNING)],
    ),
    "a topic that is halted by itself": (
        but(halted_topics=(TopicHalt("a.b", "gap at a.b/0 offset 7"),), next_step="lockstep resume s"),
        [(AlarmKind.DEGRADED, ERROR)],
    ),
    "messages that wait in a halted topic alone": (
        but(
            halted_topics=(TopicHalt("a.b", "gap at a.b/0 offset 7"),),
            next_step="lockstep resume s",
            partitions=(waits(9 * HOUR),),
            progress_seconds=9.0 * HOUR,
        ),
        [(AlarmKind.DEGRADED, ERROR)],
    ),
    "a Kafka that does not answer": (but(kafka="Kafka did not answer"), [(AlarmKind.KAFKA, ERROR)]),
    "a Kafka that does not answer about a stopped stream": (
        but(kafka="Kafka did not answer", desired=Desired.STOPPED),
        [(AlarmKind.KAFKA, WARNING)],
    ),
    "a stopped stream that has lost states": (
        but(desired=Desired.STOPPED, lost=add_losses(NONE_LOST, 3, BatchLosses(LossTotal(2, 7), LossTotal(1, 4)))),
        [(AlarmKind.LOSS, ERROR)],
    ),
    "losses that the declaration accepts": (
        but(lost=add_losses(NONE_LOST, 3, BatchLosses(LossTotal(2, 7), LossTotal()))),
        [],
    ),
    "a table that cannot be read": (
        HealthFacts(stream="adding", desired=None, reason="torn", next_step="lockstep repair adding"),
        [(AlarmKind.UNREADABLE, ERROR)],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_facts_raise_these_alarms_and_no_other(what: str) -> None:
    facts, expected = CASES[what]
    found = judge_health(facts, STREAM)
    assert [(alarm.kind, alarm.severity) for alarm in found] == expected
    assert all(alarm.problem and alarm.next_step for alarm in found)


def test_every_kind_is_raised_by_one_of_the_cases() -> None:
    assert {kind for _, alarms in CASES.values() for kind, _ in alarms} == set(AlarmKind)


def test_a_sentence_names_figures_place_and_the_number_of_others() -> None:
    low = waits(6e5, headroom_seconds=2_700.0)
    facts = but(
        partitions=(low, msgspec.structs.replace(low, topic="a.c", headroom_seconds=9_000.0), waits(1)),
        unavailable=(("a.x", 3), ("a.y", 0)),
        transactions=(OpenTransaction("a.b", 0, 7, 19, 1_200.0),),
        debt=CompactionDebt(7, 5040, "2026-01-01T00", 25_300.0),
    )
    found = {alarm.kind: (alarm.problem, alarm.next_step) for alarm in judge_health(facts, adding(r"a\..+"))}
    assert found == {
        AlarmKind.HEADROOM: (
            (
                "retention deletes the first unread message of a.b/0 in 45 min with 12 unread messages "
                "(2 partitions in all); the objective is 6.0 h"
            ),
            "lockstep plan adding",
        ),
        AlarmKind.LEADERLESS: (
            "a.x/3 has no leader that answers (2 partitions in all): it can be neither read nor written",
            (
                "kafka-topics.sh --bootstrap-server HOST:PORT --describe --unavailable-partitions names the brokers "
                "that hold the replicas: start them"
            ),
        ),
        AlarmKind.OPEN_TRANSACTION: (
            "a transaction open for 20 min hides 12 offsets of a.b/0 from 7 on",
            (
                "kafka-transactions.sh --bootstrap-server HOST:PORT find-hanging --topic a.b --partition 0; "
                "if it is listed, "
                "kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic a.b --partition 0 --start-offset 7"
            ),
        ),
        AlarmKind.COMPACTION: (
            "hour 2026-01-01T00 has waited for compaction for 7.0 h (7 hours with 5040 small files)",
            "lockstep compact adding",
        ),
    }


def test_the_page_explains_every_kind_with_its_severity() -> None:
    page = (Path(__file__).parents[3] / "docs" / "health.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (error|warning)[^|]* \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert [kind for kind, _ in rows] == [kind.value for kind in AlarmKind]
    raised = [found for _, alarms in CASES.values() for found in alarms]
    for kind, first in rows:
        severities = {severity for each, severity in raised if each is AlarmKind(kind)}
        assert AlarmSeverity(first) in severities
        both = re.search(rf"^\| `{kind}` \| (error, or warning|warning, error)", page, re.MULTILINE) is not None
        assert len(severities) == 1 + both


def test_what_is_not_known_is_neither_raised_nor_ruled_out() -> None:
    assert WELL.unknown == ()
    assert set(but(kafka="no answer").unknown) == OF_KAFKA
    unreadable, _ = CASES["a table that cannot be read"]
    assert set(unreadable.unknown) == set(AlarmKind) - {AlarmKind.UNREADABLE}
    silent = but(kafka="no answer")
    assert (silent.lag_messages, silent.waiting_seconds, silent.headroom_seconds) == (None, None, None)


def test_a_stream_without_an_objective_is_never_stale_but_may_be_stalled() -> None:
    facts = but(partitions=(waits(7200),))
    assert judge_health(facts, adding(r"a\..+")) == ()
    stands = but(partitions=(waits(7200),), progress_seconds=900.0)
    assert [alarm.kind for alarm in judge_health(stands, adding(r"a\..+"))] == [AlarmKind.STALLED]


def test_a_stream_has_as_long_as_its_trigger_waits_and_a_batch_may_take() -> None:
    assert compute_patience_seconds(replace(STREAM, trigger=Every(seconds=60))) == 60 + 300
    slow = replace(adding(r"a\..+"), trigger=FileSize("128 MB", at_most=timedelta(minutes=60)))
    assert compute_patience_seconds(slow) == 3_600 + 20 * 300  # a file has as many messages as 20 full batches at most
    assert judge_health(but(partitions=(waits(1800),), progress_seconds=1800.0), slow) == ()
    assert judge_health(but(partitions=(waits(5000),), progress_seconds=5000.0), slow) == ()
