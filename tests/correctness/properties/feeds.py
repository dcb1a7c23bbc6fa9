"""Random messages of several producers, with all kinds of faults."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import strategies as st

from lockstep import Kind
from lockstep.testing import CRASH, RESTART, Event, Idle
from lockstep.testing import SentMessage as Message
from tests.correctness.properties.probes import PLACELESS, REFUSED, WRONG_ROW, Sent

ENCODED = msgspec.json.encode
YEAR_9999_S = 253_402_300_000
SESSIONS = ("a", "b", "c")

Feed = list[Message[Sent] | Event]
Step = tuple[str, str, str, int, int]
"""Session, kind of message, its fault, seconds passed, value."""

_KINDS = st.sampled_from(["update"] * 6 + ["snapshot"] * 3 + ["end", "part", "skip"])
_FAULTS = st.sampled_from(
    ["-"] * 8 + ["gap", "repeat", "back", "swap", "garbage", "other", "resets", "early", "absurd"]
)
_VALUES = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, REFUSED, REFUSED, PLACELESS, WRONG_ROW])
STEPS = st.lists(
    st.tuples(st.sampled_from(SESSIONS), _KINDS, _FAULTS, st.sampled_from([0, 1, 1, 3, 7, 12, 30]), _VALUES),
    min_size=1,
    max_size=24,
)


@dataclass
class _Producers:
    """Numbers and clock of the producers."""

    second: int = 100
    numbers: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, Message[Sent]] = field(default_factory=dict)

    def message(self, step: Step) -> Message[Sent]:
        session, kind, fault, passed, value = step
        self.second += passed
        if fault == "garbage":
            return Message(value=b"{", key=session)
        if fault == "repeat" and session in self.last:
            return self.last[session]
        skipped = {"gap": 2, "other": 0, "back": -1}.get(fault, 1)
        number = self.numbers.get(session, 0) + skipped
        second = {"early": self.second - 9, "absurd": YEAR_9999_S}.get(fault, self.second)
        count = self.counts[session] = self.counts.get(session, 0) + 1
        sent = Sent(Kind(kind), number, second, value, restarts_sequence=fault == "resets")
        if kind == "end":
            sent.count = count
            self.counts[session] = 0
        if fault not in {"other", "back"}:
            self.numbers[session] = number
        self.last[session] = Message(value=ENCODED(sent), key=session)
        return self.last[session]


def feed(steps: list[Step]) -> list[Message[Sent]]:
    """Return the messages of some steps, in the order in which they reach the log."""
    producers = _Producers()
    sent = []
    for step in steps:
        sent.append(producers.message(step))
        if step[2] == "swap" and len(sent) > 1:
            sent[-2:] = sent[-1], sent[-2]
    return sent


CUTS = st.lists(st.tuples(st.integers(0, 24), st.sampled_from([CRASH, RESTART])), max_size=4)


def cut(messages: list[Message[Sent]], cuts: list[tuple[int, Event]]) -> Feed:
    """Return the messages with events between them."""
    between: Feed = []
    for at, message in enumerate(messages):
        between += [event for where, event in cuts if where == at]
        between.append(message)
    return between


def idle(seconds: list[tuple[int, int]], messages: list[Message[Sent]]) -> Feed:
    """Return the messages with silent times between them."""
    return cut(messages, [(at, Idle(second * 1_000_000)) for at, second in seconds])
