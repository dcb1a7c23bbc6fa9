"""Each value of an accepted state type is loaded as it was stored, or refused with its place when it is stored."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.state.codec import StateNotOfItsType, StateSchema
from lockstep.verify.stored_form import is_storable
from tests.correctness.properties.state_types import KINDS, Kind, form, make_makers, make_module
from tests.support.examples import scale_examples

EXAMPLES = scale_examples(400)


def refusal(schema: StateSchema[Any], value: object) -> str:
    """Return why a value is refused when it is stored; empty if it is accepted."""
    try:
        schema.encode("s", 1, value)
    except StateNotOfItsType as refused:
        return refused.reason
    return ""


def loaded_as(schema: StateSchema[Any], value: object) -> str:
    """Return the form of a value after it is stored and loaded; empty if that fails."""
    try:
        return form(schema.decode("s", msgspec.msgpack.encode((1, value)))[1])
    except (StateNotOfItsType, TypeError, ValueError, OverflowError):
        return ""


@settings(max_examples=EXAMPLES)
@given(kind=KINDS, data=st.data())
def test_a_stored_value_is_loaded_as_it_was_or_refused(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(kind.values, min_size=1, max_size=5))
    made = make_module("generated_state_types", f"\nSTATE = {kind.source}\nMAKERS = {make_makers(values)}")
    schema: StateSchema[Any] = StateSchema(made.STATE)
    for make in made.MAKERS:
        value = make()
        if value is None:
            continue  # a session without a state
        reason = refusal(schema, value)
        assert is_storable(value, made.STATE) is (reason == ""), "the proof judges by code of its own"
        if "equals nothing" not in reason:  # such a key is loaded as it was, unless something else is odd
            assert (loaded_as(schema, value) == form(value)) is (not reason), reason
