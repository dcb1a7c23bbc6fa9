"""The state that a fold sees depends on no batch, crash or restart, for each accepted type and its values.

A fold writes all that it can see of its state into a row, before and after it changes the state. The values are of any
kind, including values that the type does not allow: their messages are refused, in any division into batches.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import NoIntegrity, Ordered, SessionStart, Suspend
from lockstep.testing import SentMessage, Split, run
from tests.correctness.properties.state_types import KINDS, make_makers, make_module

EXAMPLES, EXAMPLES_DEEP = max(8, settings().max_examples // 8), max(100, settings().max_examples)
"""Each example compiles its own module and stream, which takes about 0.3 s."""
FOLD = '''
from collections.abc import Iterable

from lockstep import Envelope, InitialState, Kind, Record, Stream, Topics, Transform
from tests.correctness.properties.state_types import form, grow


class Held(msgspec.Struct):
    values: STATE
    numbers: list[int]


class Sent(msgspec.Struct):
    number: int
    how: Literal["replace", "grow", "snapshot"]


class Seen(msgspec.Struct):
    """What a fold saw; the numbers are an object of the state."""

    before: str
    after: str
    numbers: list[int]


class Keep(Transform[Sent, Held, Seen]):
    def envelope(self, message: Sent, record: Record) -> Envelope:
        kind = Kind.SNAPSHOT if message.how == "snapshot" else Kind.UPDATE
        return Envelope(record.key_text, kind, sequence=message.number)

    def on_snapshot(self, message: Sent, record: Record, previous: Held | None) -> InitialState[Held, Seen]:
        held = Held(make(message.number), [])
        return InitialState(held, [Seen(form(previous), form(held), held.numbers)])

    def on_update(self, state: Held, message: Sent, record: Record) -> Iterable[Seen]:
        before, values = form(state), make(message.number)
        state.numbers.append(message.number)
        state.values = grow(state.values, values) if message.how == "grow" else values
        yield Seen(before, form(state), state.numbers)


def make(number: int) -> STATE:
    return STATE(*(makers[number % len(makers)]() for makers in MAKERS))


def make_stream(integrity):
    return Stream(name="kept", topics=Topics(pattern="kept"), transform=Keep(), integrity=integrity)
'''
FIRST = SessionStart.FIRST_MESSAGE
CLASSES = {
    "none": NoIntegrity(),
    "suspending": Ordered(session_start=FIRST, on_violation=Suspend()),
    "halting": Ordered(session_start=FIRST),
}
HOW = st.sampled_from(["replace", "grow", "grow", "snapshot"])
MESSAGES = st.lists(st.tuples(st.sampled_from("pq"), HOW), min_size=3, max_size=9)


@st.composite
def sources(draw: st.DrawFn) -> str:
    """Draw the source of a fold whose state has a field of each drawn type."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=6))
    fields = "".join(f"    f{number}: {kind.source}\n" for number, kind in enumerate(kinds))
    makers = ", ".join(make_makers(draw(st.lists(kind.values, min_size=1, max_size=5))) for kind in kinds)
    state = f"\nclass Values(msgspec.Struct):\n{fields}\nSTATE = Values\nMAKERS = [{makers}]\n"
    return state + FOLD


MODULES = sources().map(partial(make_module, "generated_fold"))


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=EXAMPLES)
@given(made=MODULES, sent=MESSAGES)
def test_any_split_shows_a_fold_the_same_state(name: str, made: ModuleType, sent: list[tuple[str, str]]) -> None:
    check_splits(name, made, sent)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=EXAMPLES_DEEP)
@given(made=MODULES, sent=MESSAGES)
def test_any_split_of_many_more_shows_a_fold_the_same_state(
    name: str, made: ModuleType, sent: list[tuple[str, str]]
) -> None:
    check_splits(name, made, sent)


def check_splits(name: str, made: ModuleType, sent: list[tuple[str, str]]) -> None:
    """Compare batches of one message with crashes, and batches of two without, with a single batch."""
    stream = made.make_stream(CLASSES[name])
    messages = [SentMessage[Any](value=made.Sent(at, how), key=key) for at, (key, how) in enumerate(sent)]
    whole = run(stream, *messages)
    assert whole == run(stream, *messages, split=1)
    assert whole == run(stream, *messages, split=Split(2, crashes=False))
