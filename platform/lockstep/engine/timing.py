"""Event time of one partition while a range is folded: what moves its watermark, and what is due then."""

from __future__ import annotations

from typing import cast

import msgspec

from lockstep.declare.place import Place
from lockstep.declare.record import Record
from lockstep.engine.program import Program
from lockstep.integrity.time import PartitionTime, microseconds, time_of
from lockstep.integrity.verdict import Gate, GateState
from lockstep.state.agenda import NEVER, Agenda
from lockstep.state.reserved import CLOCK
from lockstep.state.store import Entry, PartitionState


class Clock(msgspec.Struct, array_like=True):
    """What is known of a session's time.

    Attributes:
        armed_us: The first deadline under which the session stands in the agenda.
        seen_us: Event time of its newest message.
        offset: Its last message that was applied.
    """

    armed_us: int = NEVER
    seen_us: int = 0
    offset: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_CLOCKS = msgspec.msgpack.Decoder(Clock)


class Timing:
    """See the module.

    Attributes:
        time: The partition's watermark.
    """

    def __init__(self, program: Program, time: PartitionTime, state: PartitionState[object]) -> None:
        self.time = time
        self._watermark, self._deadline = program.hooks.watermark, program.hooks.deadline
        idle = program.event_time.session_idle
        self._idle_us = None if idle is None else microseconds(idle)
        self._arms = program.arms_timers
        self._reserved = state.reserved
        self._agenda = Agenda(state.reserved) if self._arms else None
        self._clocks: dict[str, Clock] = {}

    def see(self, message: object, place: Place, record: Record) -> bool:
        """Move the watermark up to what a message says; whether something is due now."""
        if self._watermark is None:
            self.time.see(time_of(place, record))
        elif (said := self._watermark(message, record)) is not None:
            self.time.see(said)
        return self.is_due

    @property
    def is_due(self) -> bool:
        """Whether the watermark has passed something."""
        return self._agenda is not None and self._agenda.next_us <= self.time.watermark_us

    def take(self) -> list[tuple[int, str]]:
        """What is due first: (deadline, session), all of one deadline; empty when nothing is."""
        return [] if self._agenda is None else self._agenda.take(self.time.watermark_us)

    def touch(self, session: str, entry: Entry[object], gate: Gate, place: Place, record: Record) -> None:
        """Note a message of a session, and when something is due for it."""
        if self._arms:
            clock, happened_us = self.clock(session), time_of(place, record)
            if not self.time.is_absurd(happened_us):
                clock.seen_us = max(clock.seen_us, happened_us)
            clock.offset = record.offset
            self._arm(session, clock, self.due_us(session, entry, gate))

    def rearm(self, session: str, entry: Entry[object], gate: Gate) -> None:
        """Note what is due for a session after something was."""
        self.disarm(session)
        self._arm(session, self.clock(session), self.due_us(session, entry, gate))

    def disarm(self, session: str) -> None:
        """Nothing is due for a session until its next message."""
        self.clock(session).armed_us = NEVER

    def due_us(self, session: str, entry: Entry[object], gate: Gate) -> int:
        """The watermark at which something is due for a session; `NEVER` without anything."""
        released = gate.due_us(cast("GateState", entry.gate))
        return min(NEVER if released is None else released, self.timer_us(entry), self.silent_us(session))

    def timer_us(self, entry: Entry[object]) -> int:
        """When the session's own timer is due; `NEVER` without one."""
        if self._deadline is None or entry.state is None:
            return NEVER
        deadline = self._deadline(entry.state)
        return NEVER if deadline is None else deadline

    def silent_us(self, session: str) -> int:
        """When the session has been silent for too long; `NEVER` where it may be."""
        return NEVER if self._idle_us is None else self.clock(session).seen_us + self._idle_us

    def clock(self, session: str) -> Clock:
        """What is known of a session's time."""
        clock = self._clocks.get(session)
        if clock is None:
            stored = self._reserved.get(_key(session))
            clock = self._clocks[session] = Clock() if stored is None else _CLOCKS.decode(stored)
        return clock

    def forget(self, session: str) -> None:
        """A session has ended."""
        if self._arms:
            self._clocks.pop(session, None)
            self._reserved.remove(_key(session))

    def save(self) -> None:
        """Keep what is known of sessions with the state. Call once, at the end of the range."""
        for session, clock in self._clocks.items():
            self._reserved.put(_key(session), _ENCODER.encode(clock))

    def _arm(self, session: str, clock: Clock, due_us: int) -> None:
        if self._agenda is not None and due_us < clock.armed_us:
            self._agenda.add(due_us, session)
            clock.armed_us = due_us


def _key(session: str) -> bytes:
    return CLOCK + session.encode("utf-8", "surrogatepass")
