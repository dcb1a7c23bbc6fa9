"""Brings a range to what may be committed: holes proven, no message half applied, each in its place."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.engine.kept import Without
from lockstep.engine.lookahead import with_range
from lockstep.engine.program import Program
from lockstep.engine.work import Opener, Work, read_and_fold
from lockstep.integrity.acceptance import UNDECODABLE
from lockstep.integrity.contract import Fault
from lockstep.integrity.finding import Finding, Hole
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.reader import Range, Unreadable

REFUSED_MAX = 8
"""Each message that the transform cannot take costs another fold of the range; then the range ends early."""


class _Bounds(msgspec.Struct, frozen=True):
    """What the next fold of a range is to leave out, and where it is to end.

    Attributes:
        without: What it leaves out.
        until: Where it ends.
        finding: The violation at its end.
        trouble: Why it ends there without a violation.
        passes_to: The first offset after what lies corrupt there, where that is passed over.
    """

    without: Without
    until: int
    finding: Finding | None = None
    trouble: str | None = None
    passes_to: int | None = None


def settle(work: Work, opener: Opener) -> Work:
    """Fold a range again until nothing in it is left to be found out.

    1. Prove the holes; before what follows an unproven one, a class that suspends suspends. Where Kafka cannot be
       asked, the range ends before the first.
    2. A message that the transform refuses is left out of the next fold, and judged there.
    3. A violation, or more than can be kept in quarantine, ends the range; the next fold stops there.
    4. Of garbage that ends it, look how far it goes.
    5. What lies corrupt on the broker is judged as one undecodable range.

    A fold is deterministic, so each fold finds all that the one before it found, and at most one thing more.
    """
    planned, program = work.planned, opener.program
    explained = opener.log.explain(planned.position, work.gaps)
    if isinstance(explained, Unreadable):
        holes, bounds = [], _before_gaps(work, explained)
    else:
        holes = explained
        bounds = _Bounds(Without(suspend_at=_suspensions(holes, program), killing=planned.killing), planned.until)
    if bounds.without.suspend_at or bounds.trouble:
        work = _fold_again(work, opener, bounds)
    while (narrower := _narrower(work, holes, bounds, program)) is not None:
        bounds = narrower
        work = _fold_again(work, opener, bounds)
    work.holes = [hole for hole in holes if hole.until <= bounds.until]
    work.planned, work.trouble = planned, work.trouble or bounds.trouble
    work.finding = with_range(bounds.finding, work, opener)
    return _without_corrupt(work, opener, bounds) if work.is_corrupt else work


def _without_corrupt(work: Work, opener: Opener, bounds: _Bounds) -> Work:
    """Judge record batches that nobody can read: the end of the range, or passed over, as if they were one message.

    Where they can be read after all, or Kafka does not say, the range ends before them and a later batch reads on.
    """
    position, planned, start = work.planned.position, work.planned, work.reached
    end = opener.log.readable_again(Range(position.topic, position.partition, start, planned.until))
    if end is None or end <= start:
        return work
    problem, answer = work.trouble or "", work.fold.judge.answer(Fault.UNDECODABLE, start)
    if start < position.suspended_from:
        end = min(end, position.suspended_from)  # no more than was given up
    if answer is Judgement.VIOLATION:
        found = work.fold.judge.finding(UNDECODABLE, start)
        told = {"until": end, "expected": "record batches as they were written", "found": "corrupt ones on the broker"}
        work.finding, work.trouble = msgspec.structs.replace(found, **told, detail=problem), None
        return work
    suspend_at = (*bounds.without.suspend_at, *((end,) if answer is Judgement.SUSPEND else ()))
    without = msgspec.structs.replace(bounds.without, suspend_at=suspend_at)
    holes = [*work.holes, Hole(start=start, until=end, cause="corrupt")]
    again = _fold_again(work, opener, _Bounds(without, start, passes_to=end))
    again.planned, again.holes = planned, holes
    again.trouble = f"offsets {start} to {end - 1} are corrupt on the broker and passed over: {problem}"
    return again


def _before_gaps(work: Work, unread: Unreadable) -> _Bounds:
    """Not to be able to ask is no evidence: the range ends before what is in question, and a later batch asks again."""
    first = work.gaps[0][0]
    problem = f"why offset {first} holds no message could not be read from Kafka: {unread.reason}"
    return _Bounds(Without(killing=work.planned.killing), first, trouble=problem)


def _narrower(work: Work, holes: list[Hole], bounds: _Bounds, program: Program) -> _Bounds | None:
    """The bounds of the next fold; None when the last one found nothing new."""
    stop, judge = _first_stop(work, holes, bounds.until, program), work.fold.judge
    refused, kept = judge.refused, judge.fullest
    if refused is not None and (stop is None or refused.offset < stop.offset):
        return _leaving_out(bounds, refused, held=judge.refused_held)
    if stop is not None:
        if stop.offset >= bounds.until:
            raise AssertionError(f"the fold is not deterministic: {stop}")
        return msgspec.structs.replace(bounds, until=stop.offset, finding=stop, trouble=None)
    if kept.full and bounds.until > kept.rows[-1].offset + 1:
        problem = "quarantine or late table hold as much as one range may"
        return msgspec.structs.replace(bounds, until=kept.rows[-1].offset + 1, trouble=problem)
    return None


def _leaving_out(bounds: _Bounds, refused: Finding, *, held: bool) -> _Bounds:
    field = "held_refused" if held else "refused"
    known: Mapping[int, Finding] = getattr(bounds.without, field)
    if refused.offset in known or refused.offset >= bounds.until:
        raise AssertionError(f"the fold is not deterministic: {refused}")
    if len(known) < REFUSED_MAX:
        without = msgspec.structs.replace(bounds.without, **{field: {**known, refused.offset: refused}})
        return msgspec.structs.replace(bounds, without=without)
    problem = f"{REFUSED_MAX} messages that the transform cannot take"
    return msgspec.structs.replace(bounds, until=refused.offset, finding=None, trouble=problem)


def _fold_again(work: Work, opener: Opener, bounds: _Bounds) -> Work:
    work.state.close()
    again = opener.open(msgspec.structs.replace(work.planned, until=bounds.until), bounds.without)
    again.passes_to = bounds.passes_to
    read_and_fold(opener, [again])
    return again


def _first_stop(work: Work, holes: list[Hole], until: int, program: Program) -> Finding | None:
    """The earlier of the fold's stop and the first hole that nothing explains."""
    stopped = work.fold.judge.stopped
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
