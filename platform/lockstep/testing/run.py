"""Runs the messages of a test through the engine's own fold, in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Generic, cast

import msgspec
from msgspec.structs import replace

from lockstep.declare.place import Kind, Place
from lockstep.declare.record import Record
from lockstep.declare.stream import Stream
from lockstep.declare.transform import M, Opened, R, S
from lockstep.engine.fold import RangeFold
from lockstep.engine.kept import Without
from lockstep.engine.plan import Position
from lockstep.engine.program import Hooks, Program, program
from lockstep.integrity.contract import Fault
from lockstep.integrity.finding import Finding
from lockstep.integrity.suspending import SuspendedSession
from lockstep.integrity.time import PartitionTime
from lockstep.integrity.verdict import Gate, GateState, Judgement, Verdict
from lockstep.state.address import empty_state
from lockstep.state.hotfolder import HotFolder
from lockstep.state.store import PartitionState
from lockstep.testing.messages import InLog, Sent, in_log
from lockstep.testing.ran import Folded, Ran

TOPIC_ID = "testing"
"""Kafka draws such an id for each life of a topic; a test has one life."""
_NOWHERE = Path("/nonexistent/lockstep.testing")
"""State that begins empty is never read from a file, and a test writes none."""
SKIPPED = Verdict(judgement=Judgement.ACCEPT, cause="skip")


def run(
    stream: Stream[M, S, R],
    *messages: M | bytes | Sent[M],
    key: str | bytes | None = None,
    topic: str = "testing",
) -> Ran[S, R]:
    """Fold messages as one partition of a topic, from offset 0, until the first violation.

    As in a real run, a message that is refused leaves no trace in rows and states.

    Args:
        stream: The declaration under test.
        messages: Messages of the stream's type, bytes as a producer sends them, or `Sent` for more.
        key: Key of the messages that name none.
        topic: Name of the topic, for transforms that read it.

    Raises:
        LockstepError: A typed message cannot be encoded: give its bytes.
        StateNotOfItsType: The fold left a state that cannot be saved or recovered.
    """
    log = [in_log(at, message, key, stream.decoder) for at, message in enumerate(messages)]
    made = program(cast("Stream[object, object, msgspec.Struct]", stream))
    first = _Pass[S, R](made, topic, log)
    while first.refused is not None:
        first = _Pass[S, R](made, topic, log, first.without_refused())
    kept = first if first.finding is None else _Pass[S, R](made, topic, log[: first.finding.offset], first.without)
    folded = [kept.folded(message.at) for message in kept.log]
    if first.finding is not None:
        folded.append(first.violation(first.finding))
    return Ran(stream.name, tuple(folded), kept.states(), first.finding, kept.emitted())


class _Pass(Generic[S, R]):
    """One pass of the engine's fold over some messages, which notes what the fold asks and is told."""

    def __init__(self, made: Program, topic: str, log: Sequence[InLog], without: Without | None = None) -> None:
        self.log, self.without = log, without or Without()
        self._program = made
        self._places: dict[int, Place] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._rows: dict[int, tuple[R, ...]] = {}
        address = empty_state(0, TOPIC_ID, 0, 0)
        hot = HotFolder(_NOWHERE, _NOWHERE)
        self._state = PartitionState[object].open(address, durable=_NOWHERE, hot=hot, schema=made.state)
        self._emitted: list[R] = []
        noted = replace(
            made, place=self._place, gate_for=self._gate_for, open=self._open, apply=self._apply, hooks=self._hooks()
        )
        where = Position(topic=topic, topic_id=TOPIC_ID, partition=0, next_offset=0)
        fold = RangeFold(noted, where, self._state, self.without)
        fold.fold(log)
        fold.finish(len(log))
        self.finding, self.refused, self._refused_held = fold.judge.stopped, fold.judge.refused, fold.judge.refused_held

    def without_refused(self) -> Without:
        """What the next pass leaves out."""
        found, field = cast("Finding", self.refused), "held_refused" if self._refused_held else "refused"
        known = getattr(self.without, field)
        if found.offset in known:
            raise AssertionError(f"the fold is not deterministic: {found}")
        return replace(self.without, **{field: {**known, found.offset: found}})

    def emitted(self) -> tuple[R, ...]:
        """All rows, in order."""
        return tuple(self._emitted)

    def folded(self, offset: int) -> Folded[R]:
        """What became of a message that was not refused."""
        place = self._places.get(offset)
        verdict = self._verdicts.get(offset)
        if offset in self.without.refused:
            answer = self._program.integrity.answer(Fault.RAISED)
            return self._told(self.without.refused[offset], answer)
        if offset in self.without.held_refused:
            return self._told(self.without.held_refused[offset], self._program.integrity.answer(Fault.RAISED))
        if verdict is None:  # the gate was never asked
            undecodable = Verdict(judgement=self._program.integrity.answer(Fault.UNDECODABLE), cause="undecodable")
            verdict = SKIPPED if place is not None and place.kind is Kind.SKIP else undecodable
        return Folded(offset, place, verdict, self._rows.get(offset, ()))

    def violation(self, finding: Finding) -> Folded[R]:
        """What became of the message that a violation is about."""
        return self._told(finding, Judgement.VIOLATION)

    def _told(self, finding: Finding, judgement: Judgement) -> Folded[R]:
        verdict = Verdict(
            judgement=judgement,
            cause=finding.cause,
            expected=finding.expected,
            found=finding.found or finding.detail or None,
        )
        return Folded(finding.offset, self._places.get(finding.offset), verdict, ())

    def states(self) -> dict[str, S]:
        """The states of all open sessions, saved and recovered."""
        schema = self._program.state
        states = {}
        for session, entry in self._state.entries.items():
            if entry.state is None:
                continue  # its snapshot is on its way, in several messages
            states[session] = schema.recovered(session, entry.gate, entry.state)
        return cast("dict[str, S]", states)

    def _place(self, message: object, record: Record) -> Place:
        place = self._places[record.offset] = self._program.place(message, record)
        return place

    def _gate_for(
        self, before: int, time: PartitionTime, skipped: Collection[SuspendedSession] = (), *, spread: bool = False
    ) -> Gate:
        return _Noting(self._program.gate_for(before, time, skipped, spread=spread), self._verdicts)

    def _hooks(self) -> Hooks:
        """The hooks that emit rows, noted."""
        hooks = self._program.hooks
        noted = {
            name: self._noting(getattr(hooks, name))
            for name in ("on_timer", "on_late", "on_end")
            if getattr(hooks, name) is not None
        }
        return replace(hooks, **noted)

    def _noting(self, hook: Callable[..., Iterable[msgspec.Struct]]) -> Callable[..., list[msgspec.Struct]]:
        def noted(*given: object) -> list[msgspec.Struct]:
            rows = list(hook(*given))
            self._emitted.extend(cast("list[R]", rows))
            return rows

        return noted

    def _open(self, message: object, record: Record) -> object:
        opened = self._program.open(message, record)
        if isinstance(opened, Opened):
            both = cast("Opened[object, msgspec.Struct]", opened)
            return Opened(both.state, self._noted(record, both.rows))
        return opened

    def _apply(self, state: object, message: object, record: Record) -> Iterable[msgspec.Struct]:
        return self._noted(record, self._program.apply(state, message, record))

    def _noted(self, record: Record, emitted: Iterable[msgspec.Struct]) -> list[msgspec.Struct]:
        rows = list(emitted)
        self._rows[record.offset] = cast("tuple[R, ...]", tuple(rows))
        self._emitted.extend(cast("list[R]", rows))
        return rows


class _Noting(Gate):
    """A gate whose verdicts are written down, by offset."""

    def __init__(self, asked: Gate, verdicts: dict[int, Verdict]) -> None:
        self._asked, self._verdicts = asked, verdicts
        self.adapt, self.held, self.due_us, self.due = asked.adapt, asked.held, asked.due_us, asked.due  # type: ignore[method-assign]  # as they are

    def check(self, state: GateState, place: Place, record: Record) -> tuple[GateState, Verdict]:
        """See `Gate.check`."""
        after, verdict = self._asked.check(state, place, record)
        self._verdicts[record.offset] = verdict
        return after, verdict
