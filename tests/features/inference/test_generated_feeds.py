"""Random and hostile feeds: the inferred types decode each message, and the proposed stream accepts it."""

from __future__ import annotations

import builtins
import keyword
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.features.inference.sample import NothingToInfer
from tests.features.inference.feeds import propose, sample_keyed, sample_values

NAMES = st.one_of(
    st.sampled_from([*keyword.kwlist, "str", "int", "datetime", "Decimal", "_id", "__class__", "a-b", "1st", "", " "]),
    st.sampled_from(
        ["Message", "DataPart", "PlantRow", "msgspec", "self", "\ufb01", "\uff21", '"""', "\\", "\n", "a.b", "U", "u"]
    ),
    st.text(max_size=6),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1.50", "-0.000000000000000001", "12345678901234567890123.5", "007", "1e5", ".5", "NaN"]),
    st.sampled_from(
        ["2026-02-28T23:59:59Z", "2026-02-30T00:00:00Z", "2026-01-31T00:00:00+13:59", "0001-01-01T00:00:00Z"]
    ),
    st.sampled_from(["2024-02-29T00:00:00.123456Z", "2023-02-29T00:00:00Z", "2026-11-29 16:00:00-00:30"]),
    st.text(max_size=5),
)


def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=5))


VALUES = st.recursive(SCALARS, extend, max_leaves=12)


@st.composite
def feeds(draw: st.DrawFn) -> list[tuple[str, object]]:
    """Draw messages of one schema: each field has one kind and is missing or null in some messages."""
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    kinds = {name: draw(st.sampled_from([SCALARS, VALUES, st.integers(-5, 5), st.just("x")])) for name in names}
    optional = {name for name in names if draw(st.booleans())}
    has_number = draw(st.booleans())
    sent: list[tuple[str, object]] = []
    counts = {"a": 0, "b": 0}
    for _ in range(draw(st.integers(1, 12))):
        message = {name: draw(kind) for name, kind in kinds.items() if name not in optional or draw(st.booleans())}
        key = draw(st.sampled_from("ab"))
        counts[key] += 1
        sent.append((key, {**message, **({"seq": counts[key]} if has_number else {})}))
    return sent


@settings(max_examples=25, deadline=None)
@given(feeds())
def test_a_stream_of_a_random_schema_accepts_every_message(sent: list[tuple[str, object]]) -> None:
    proposed = propose(sample_keyed(sent))
    assert proposed.proposal.integrity.startswith("Strict(")
    assert proposed.rows > 0


@settings(max_examples=25, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=10))
def test_a_stream_of_values_of_any_kind_accepts_every_message(values: list[object]) -> None:
    assert propose(sample_values(values)).rows > 0


@pytest.mark.parametrize("text", ["2026-02-28T23:59:59Z", "2026-02-28", "1.50", "x"])
@pytest.mark.parametrize("later", [5, 0.5, [], {}, True])
def test_a_text_that_starts_each_session_marks_it_only_if_it_stays_a_text(text: str, later: object) -> None:
    sent: list[tuple[str, object]] = [("a", {"x": text}), ("a", {"x": later}), ("b", {"x": text})]
    assert propose(sample_keyed(sent)).proposal.integrity.startswith("Strict(")


def ids_from(start: int) -> object:
    return {f"id-{n}": {"price": n / 7} for n in range(start, start + 30)}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    "values",
    [
        [nested(depth) for depth in (1, 5, 40, 200)],
        [{name: n} for n, name in enumerate(dir(builtins))],
        [{f"k{n}": n for n in range(5_000)}],
        [ids_from(start) for start in range(0, 300, 30)],
        [{"a": "x" * 3_000_000}, {"a": 1}],
        [{"type": f"t{n % 20}", f"f{n % 20}": n} for n in range(60)],
        [{"type": n % 3, f"f{n % 3}": n} for n in range(60)],
        [{"a": {"class": 1}}, {"a": None}, {"a": [{"def": 2}]}, {"a": "x"}],
        [[1, {"a": 2}, "x"], [1, "y", {"a": 2}, "x"]],
        [{"x": [[1, "2.5"], [3, "4"]]}, {"x": []}],
        [{}],
        [1, "a", None, [], {}],
    ],
    ids=lambda values: str(values)[:30],
)
def test_odd_feeds_have_a_stream(values: list[object]) -> None:
    assert propose(sample_values(values)).rows > 0


@pytest.mark.parametrize("values", [[], [b"{"], [b"\xff\xfe"], [b"[" * 100_000], [b'{"a": 1e999}']])
def test_a_topic_without_json_is_refused_by_name(values: list[bytes]) -> None:
    with pytest.raises(NothingToInfer, match=r"topic 'plant\.north': "):
        propose(sample_values(values))
