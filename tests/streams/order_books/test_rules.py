"""The rules that the stream declares hold for the recordings, and detect a bug of its fold."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import assets.order_books as original
from lockstep.declare.rules import ColumnRule, Unique
from lockstep.testing import SentMessage, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from lockstep.features.localdev.recordings import Sent

MESSAGES = 400
"""Messages of each book: some 10,000 rows."""


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Callable[[str, str], ModuleType]]:
    """A function that loads a copy of the stream's module with one line replaced."""

    def load(line: str, other: str) -> ModuleType:
        text = Path(original.__file__).read_text()
        assert text.count(line) == 1
        path = tmp_path / "damaged_books.py"
        path.write_text(text.replace(line, other))
        spec = importlib.util.spec_from_file_location("damaged_books", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["damaged_books"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    sys.modules.pop("damaged_books", None)


def count_violations(module: ModuleType, sent: Sent) -> Counter[str]:
    """Count violations of each declared rule in the rows of some messages."""
    stream = module.order_books
    messages = [SentMessage[Any](value=each.value, key=each.key) for each in sent.messages[:MESSAGES]]
    found = run(stream, *messages).or_raise().proven
    assert len(found) > MESSAGES
    violated = Counter[str]()
    for rule in stream.rules:
        if isinstance(rule, ColumnRule):
            violated[rule.name] += sum(not rule.is_kept_by(each.row) for each in found)
        else:
            columns = cast("Unique", rule).columns
            keys = Counter((each.offset, *(getattr(each.row, name) for name in columns)) for each in found)
            violated[rule.name] += sum(count - 1 for count in keys.values())
    return +violated


@pytest.mark.parametrize("book", ["cm_btcusd_perp", "spot_btcusdt", "spot_ethusdt"])
def test_the_recordings_keep_the_rules(book: str, both_days: Callable[[str], Sent]) -> None:
    assert count_violations(original, both_days(book)) == Counter()


BUGS = {
    "a removed level stays with quantity zero": (
        "None if is_zero(quantity) else PriceLevel(price, quantity)",
        "PriceLevel(price, quantity)",
        "quantity_is_positive",
    ),
    "sides are named as the exchange abbreviates them": (
        '{"bid": book.b, "ask": book.a}',
        '{"b": book.b, "a": book.a}',
        "side_in_set",
    ),
    "each level is given twice, with different text": (
        "                yield (side, read_price(price)), level",
        '                yield from [((side, read_price(price)), x) for x in (PriceLevel(price, "1"), level)]',
        "side_price_unique",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_fold_is_found_by_a_rule(
    bug: str, both_days: Callable[[str], Sent], damaged: Callable[[str, str], ModuleType]
) -> None:
    line, other, rule = BUGS[bug]
    violated = count_violations(damaged(line, other), both_days("spot_ethusdt"))
    assert violated.keys() == {rule}
