"""An object in two places of a state is found, for any types between them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lockstep.model.aliases import find_alias


class Flat(msgspec.Struct, frozen=True):
    """A struct without mutable objects."""

    text: str = ""


class Deep(msgspec.Struct, frozen=True):
    """An immutable struct that may have mutable objects."""

    inner: list[object] | None = None


class Open(msgspec.Struct):
    """A mutable struct."""

    inner: object = None


ATOMS = st.one_of(st.none(), st.integers(), st.text(max_size=2), st.builds(Flat, st.text(max_size=2)))
VALUES: st.SearchStrategy[object] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=1), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Open, inner),
        st.builds(Deep, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["list", "struct", "none"]), VALUES, VALUES)
def test_a_shared_object_is_found_and_nothing_else(
    values: list[object], shared: str, left: object, right: object
) -> None:
    assert find_alias(list(values)) == ""
    if shared == "none":
        return
    both: object = [1] if shared == "list" else Open()
    found = find_alias([*values, (left, Deep([both])), {"k": Open(both)}, (right,)])
    assert "would be loaded as two" in found
    assert f"one {type(both).__name__}" in found
