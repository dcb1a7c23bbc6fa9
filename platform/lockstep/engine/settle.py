"""Brings a range to what may be committed: holes proven, no message half applied, each in its place."""

from __future__ import annotations

import msgspec

from lockstep.engine.kept import Without
from lockstep.engine.program import Program
from lockstep.engine.work import Opener, Work, read_and_fold
from lockstep.integrity.contract import Fault
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.holes import explain

REFUSED_MAX = 8
"""Each message that the transform cannot take costs another fold of the range; then the range ends early."""


def settle(work: Work, opener: Opener) -> Work:
    """Fold a range again until nothing in it is left to be found out.

    1. Prove the holes; before what follows an unproven one, a class that suspends suspends.
    2. A message that the transform refuses is left out of the next fold, and judged there.
    3. A violation, or more than can be kept in quarantine, ends the range; the next fold stops there.

    A fold is deterministic, so each fold finds all that the one before it found, and at most one thing more.
    """
    job, planned, program = opener.job, work.planned, opener.program
    where = planned.position
    holes = explain(job.kafka, where.topic, where.partition, work.gaps, deletes_only=where.deletes_only)
    without, until, finding, trouble = Without(suspend_at=_suspensions(holes, program)), planned.until, None, None
    if without.suspend_at:
        work = _fold_again(work, opener, until, without)
    while True:
        stop, refused, kept = _first_stop(work, holes, until, program), work.fold.refused, work.fold.kept
        if refused is not None and (stop is None or refused.offset < stop.offset):
            if refused.offset in without.refused:
                raise AssertionError(f"the fold is not deterministic: {refused}")
            if len(without.refused) < REFUSED_MAX:
                without = msgspec.structs.replace(without, refused={**without.refused, refused.offset: refused})
            else:
                until, trouble = refused.offset, f"{REFUSED_MAX} messages that the transform cannot take"
        elif stop is not None:
            if finding is not None and stop.offset >= until:
                raise AssertionError(f"the fold is not deterministic: {stop}")
            until, finding = stop.offset, stop
        elif kept.full and until > kept.rows[-1].offset + 1:
            until, trouble = kept.rows[-1].offset + 1, "quarantine holds as much as one range may"
        else:
            break
        work = _fold_again(work, opener, until, without)
    work.holes = [hole for hole in holes if hole.until <= until]
    work.planned, work.finding, work.trouble = planned, finding, work.trouble or trouble
    return work


def _fold_again(work: Work, opener: Opener, until: int, without: Without) -> Work:
    work.state.close()
    again = opener.open(msgspec.structs.replace(work.planned, until=until), without)
    read_and_fold(opener.job, [again])
    return again


def _first_stop(work: Work, holes: list[Hole], until: int, program: Program) -> Finding | None:
    """The earlier of the fold's stop and the first hole that nothing explains."""
    stopped = work.fold.stopped
    if program.integrity.answer(Fault.HOLE) is not Judgement.VIOLATION:
        return stopped
    for hole in holes:
        if hole.cause == "unproven" and hole.start < until and (stopped is None or hole.start < stopped.offset):
            return _hole_finding(work, hole)
    return stopped


def _suspensions(holes: list[Hole], program: Program) -> tuple[int, ...]:
    if program.integrity.answer(Fault.HOLE) is not Judgement.SUSPEND:
        return ()
    return tuple(hole.until for hole in holes if hole.cause == "unproven")


def _hole_finding(work: Work, hole: Hole) -> Finding:
    position = work.planned.position
    return Finding(
        cause="hole",
        topic=position.topic,
        topic_id=position.topic_id,
        partition=position.partition,
        offset=hole.start,
        until=hole.until,
        expected=f"messages at offsets {hole.start} to {hole.until - 1}",
        found="none, and no transaction that explains it",
    )
