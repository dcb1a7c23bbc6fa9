"""The plan of a resumption counts each option's lost messages: as many as the resumed run leaves out."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstep.integrity.resume_options import AcceptLoss, FromSnapshot, SkipSession
from lockstep.operations.resume import plan_resume
from lockstep.operations.resume_cost import ResumeCosts
from tests.support.feed import snapshot, update
from tests.support.resuming import halted, kept, resumed, send_all

if TYPE_CHECKING:
    from lockstep.integrity.resume_options import Acceptance
    from lockstep.operations.resume_cost import OptionCost
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

SESSIONS = "abcd"


def make_log(rng: random.Random, length: int) -> list[tuple[str, bytes]]:
    """Return messages of sessions that start with a snapshot and may have further snapshots."""
    newest = dict.fromkeys(SESSIONS, 0)
    log: list[tuple[str, bytes]] = []
    for _ in range(length):
        session = rng.choice(SESSIONS)
        make = snapshot if not newest[session] or rng.random() < 0.1 else update
        newest[session] += 1
        log.append((session, make(newest[session], a=1)))
    return log


def count_costs(runs: LocalRuns) -> dict[str, OptionCost]:
    costs = ResumeCosts(runs.stream, runs.settings)
    found = plan_resume(runs.folders, [], suggested=True, costs=costs).costs
    assert [each.messages or 0 for each in found] == sorted(each.messages or 0 for each in found)
    return {each.option: each for each in found}


def copy_of(runs: LocalRuns, name: str) -> LocalRuns:
    root = runs.root.with_name(f"{runs.root.name}_{name}")
    shutil.copytree(runs.root, root)
    return replace(runs, root=root)


@pytest.mark.parametrize("seed", range(3))
def test_garbage_costs_one_message_or_all_up_to_the_next_snapshots(feed: Feed, runs: LocalRuns, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # reproducible
    topic = feed.create("values")
    log = make_log(rng, 60)
    bad = rng.randrange(20, 30)
    log.insert(bad, ("x", b'{"broken'))
    send_all(feed, topic, log)
    halted(runs)
    costs = count_costs(runs)
    assert list(costs) == [f"--accept-loss {topic}/0@{bad}", f"--from-snapshot {topic}/0"]
    begun = len({session for session, _ in log[:bad]})
    assert [each.sessions for each in costs.values()] == [0, begun]
    passed_over, from_snapshot = (each.messages for each in costs.values())
    assert passed_over == 1
    waiting = copy_of(runs, "waiting")
    resumed(waiting, FromSnapshot(topic, 0))
    waiting.run()
    assert len(kept(waiting)) == from_snapshot
    resumed(runs, AcceptLoss.parse(f"{topic}/0@{bad}"))
    runs.run()
    assert kept(runs) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_gap_costs_its_session_or_all_sessions(feed: Feed, runs: LocalRuns, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # reproducible
    topic = feed.create("values")
    log = make_log(rng, 60)
    lost = next(at for at in range(20, 60) if b"update" in log[at][1] and b"update" in next_of(log, at))
    del log[lost]
    send_all(feed, topic, log)
    (finding,) = halted(runs)
    costs = count_costs(runs)
    skip = SkipSession(topic, 0, finding.session or "")
    options: list[Acceptance] = [skip, FromSnapshot(topic, 0)]
    assert list(costs) == [f"--{each.OPTION} {each.argument}" for each in options]
    assert next(iter(costs.values())).sessions == 1
    for option, cost in zip(options, costs.values(), strict=True):
        trial = copy_of(runs, option.OPTION)
        resumed(trial, option)
        trial.run()
        assert len(kept(trial)) == cost.messages


def next_of(log: list[tuple[str, bytes]], at: int) -> bytes:
    """Return the next message of a message's session; empty without a next message."""
    return next((value for session, value in log[at + 1 :] if session == log[at][0]), b"")
