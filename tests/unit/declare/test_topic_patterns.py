"""Topics by regular expressions: the same as by Python's, and in bounded time for any names of others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Earliest, Latest, Topics
from lockstep.errors import DeclarationError

NAME_MAX = 249
"""Kafka's limit for the length of a topic name."""
LETTERS = "abAB09._-"
PARTS = ("a", "b", r"\.", ".", r"\w", r"\d", "[a-z]", "[^a]", r"[\w.-]", "_", "-", "A", "(?i:b)")
NAMES = some.text(LETTERS, max_size=12)
PATTERNS = some.recursive(
    some.sampled_from(PARTS),
    lambda inner: some.one_of(
        some.tuples(inner, inner).map("".join),
        some.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        some.tuples(inner, some.sampled_from(["+", "*", "?", "{2}", "{1,3}", "+?"])).map("(?:{0[0]}){0[1]}".format),
        inner.map("({})".format),
    ),
    max_leaves=6,
)


@given(PATTERNS, some.none() | PATTERNS, some.lists(NAMES, max_size=8))
def test_topics_are_selected_as_python_matches_them(pattern: str, exclude: str | None, names: list[str]) -> None:
    prefixed = [f"s{name}" for name in names]
    left_out = None if exclude is None else f"s{exclude}"
    found = Topics(pattern=f"s{pattern}", exclude=left_out).select([*prefixed, "__consumer_offsets"])
    wanted = {name for name in prefixed if re.fullmatch(f"s{pattern}", name)}
    assert found == {name for name in wanted if left_out is None or not re.fullmatch(left_out, name)}


@given(PATTERNS, NAMES)
def test_a_start_is_that_of_the_first_expression_that_python_matches(pattern: str, name: str) -> None:
    topics = Topics(pattern="s.*", start_by_topic={f"s{pattern}": Latest()}, start=Earliest())
    expected = Latest() if re.fullmatch(f"s{pattern}", f"s{name}") else Earliest()
    assert topics.find_start(f"s{name}") == expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a*)*b", "(a|aa)+b", r"(\w+\.?)+b", "(.*a){20}b", "a*a*a*a*a*a*a*a*b", "(a?){60}a{60}b"],
)
def test_no_name_of_a_topic_takes_long_whatever_the_pattern(pattern: str) -> None:
    names = ["a" * NAME_MAX, "a." * (NAME_MAX // 2), "a" * 60 + "b"]
    topics = Topics(pattern=pattern, exclude=pattern, start_by_topic={pattern: Latest()})
    assert topics.select(names) == frozenset()
    assert isinstance(topics.find_start("a" * NAME_MAX), Earliest)


@pytest.mark.parametrize("pattern", [r"(?!test\.).+", r"(?<=a)b", r"(a)\1", r"a\Z"])
def test_an_expression_that_cannot_be_matched_in_linear_time_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(DeclarationError, match="is not a regular expression of RE2") as refused:
        Topics(pattern=pattern)
    assert "Topics.exclude" in refused.value.next_step
