"""Counts of messages: summed by name, and columns of the ledger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from lockstep.model.message_counts import MessageCounts
from lockstep.table.ledger import SCHEMA

NAMES = MessageCounts.__struct_fields__
COUNTS = some.builds(MessageCounts, **dict.fromkeys(NAMES, some.integers(0, 2**40)))


@given(some.lists(COUNTS, max_size=5))
def test_a_sum_is_the_sum_of_each_count(counts: list[MessageCounts]) -> None:
    total = MessageCounts.add_up(counts)
    for name in NAMES:
        assert getattr(total, name) == sum(getattr(each, name) for each in counts)
    assert total.accounted == sum(each.accounted for each in counts)


def test_every_count_but_the_refused_messages_is_a_column_of_the_ledger() -> None:
    columns = MessageCounts().make_columns()
    assert columns == dict.fromkeys([name for name in NAMES if name != "refused"], 0)
    assert columns.keys() <= set(SCHEMA.names)
