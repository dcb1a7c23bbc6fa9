"""Two spellings of one number among the keys of a fold are named, and nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from assets.order_books import OrderBook, order_books
from lockstep import Envelope, Record, TableFold
from lockstep.operations.inspect.spellings import KeySpellings, TwoSpellings
from lockstep.testing import run
from tests.streams.order_books.test_spellings import snapshot, update
from tests.support.spellings import spell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypothesis.strategies import DataObject


class Keys(TableFold[list[Any], Any, int, Any]):
    """A fold whose messages are lists of keys."""

    def envelope(self, message: list[Any], record: Record) -> Envelope:
        return Envelope("s")

    def changes(self, message: list[Any]) -> Iterable[tuple[Any, int]]:
        for key in message:
            if key == "raises":
                raise ValueError(key)
            yield key, 1

    def emit(self, message: list[Any] | None, key: Any, new: int | None, previous: int | None) -> Any:
        raise NotImplementedError


def find(*messages: list[Any]) -> TwoSpellings | None:
    keys = KeySpellings(Keys())
    for message in messages:
        keys.note("s", message)
    return keys.found


NUMBERS = st.decimals(-1_000_000, 1_000_000, places=6)


@given(number=NUMBERS, data=st.data())
def test_two_spellings_of_a_number_are_named(number: Decimal, data: DataObject) -> None:
    first = data.draw(spell(number))
    second = data.draw(spell(number))
    found = find([("bid", first)], [("ask", second), ("bid", second)])
    assert found == (None if first == second else TwoSpellings("s", first, second))


@given(keys=st.lists(NUMBERS | st.integers() | st.text(alphabet="ab1", max_size=2), max_size=20))
def test_keys_that_are_values_or_are_spelled_once_are_not_named(keys: list[Any]) -> None:
    spelled = [key if isinstance(key, str) and "a" in key else ("x", str(key).lstrip("0") or "0") for key in keys]
    texts = {str(Decimal(key[1])) if isinstance(key, tuple) and key[1].isdigit() else key for key in spelled}
    assert find([number for number in keys if not isinstance(number, str)]) is None
    assert find(list(texts)) is None


@given(keys=st.lists(st.text(alphabet="01e+-.E", max_size=30) | st.just("1e" + "9" * 40) | st.just([1]), max_size=9))
def test_no_text_and_no_object_without_a_hash_ends_a_trial(keys: list[Any]) -> None:
    found = find(keys)
    assert found is None or Decimal(found.first) == Decimal(found.second)


def test_other_sessions_sides_and_words_are_no_spellings() -> None:
    keys = KeySpellings(Keys())
    keys.note("s", [("bid", "1.0"), "1.0 kg", "v1.0", Decimal("1.0"), 1])
    keys.note("t", [("bid", "1.00")])
    keys.note("s", [("ask", "1.00"), "1.00 kg", "v1.00", ("bid", 1), ("raises", "1"), "raises"])
    assert keys.found is None


def test_a_shipped_stream_has_no_such_keys() -> None:
    keys = KeySpellings(OrderBook())
    for value in (snapshot([("1.0", "1")]), update(2, [("1.00", "2")])):
        keys.note("eth", order_books.decoder.build(order_books.types.message)(value))
    assert keys.found is None


def test_removals_of_keys_that_are_not_there_are_counted() -> None:
    absent = update(2, [("1.0", "0"), ("2", "0"), ("1", "0.00")])
    ran = run(order_books, snapshot([("1.00", "1")]), absent, key="eth", split=1).or_raise()
    assert len(ran.states["eth"]) == 0
