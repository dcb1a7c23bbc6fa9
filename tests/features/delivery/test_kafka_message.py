"""Messages encoded together equal messages encoded one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lockstep.delivery import DeliveredRow, KafkaTopic, RowUndeliverable
from lockstep.features.delivery.kafka_message import BATCH, ROW, MessageEncoder, choose_partition
from lockstep.features.delivery.row_values import JsonValues
from tests.features.delivery.postgres_rows import make_row

PARTITIONS = 5


class Value(msgspec.Struct):
    name: str
    value: Any = 1


def list_rows() -> list[DeliveredRow]:
    """Return rows of two batches and partitions, with texts that JSON escapes."""
    rows = list[DeliveredRow]()
    for number in range(40):
        row = make_row(Value(f"line {number}\n\r\u2028", number or None), number, 1 + number // 20, f"s{number % 7}")
        rows.append(DeliveredRow(row.value, replace(row.origin, partition=number // 10 % 2)))
    return rows


KEY = ("_session", "name")


def make_encoder(**options: Any) -> MessageEncoder:
    return MessageEncoder("table", "code", PARTITIONS, KafkaTopic(topic="rows", **options), JsonValues())


@pytest.mark.parametrize(("key", "removed"), [((), ""), (KEY, ""), (KEY, "value")])
def test_rows_are_encoded_together_as_one_by_one(key: tuple[str, ...], removed: str) -> None:
    rows = list_rows()
    encoder = make_encoder(key=key, removed=removed)
    messages = list(encoder.encode_all(rows))
    assert messages == [encoder.encode(row) for row in rows]
    for row, message in zip(rows, messages, strict=True):
        origin = row.origin
        session = origin.session if not key else msgspec.json.encode([origin.session, row.value.name]).decode()  # type: ignore[attr-defined]  # a row
        is_gone = bool(removed) and origin.offset == 0
        assert message.key == session.encode()
        assert message.value == (None if is_gone else msgspec.json.encode(row.value))
        assert message.partition == choose_partition(message.key, PARTITIONS)
        identity = f"table/1/{origin.topic_id}/{origin.partition}/{origin.emit_offset}/0".encode()
        assert message.headers == [(ROW, identity), (BATCH, f"{origin.batch}/code/t".encode())]


def test_a_value_with_a_line_feed_is_the_value_of_its_row() -> None:
    rows = list_rows()
    rows[3] = DeliveredRow(Value("raw", msgspec.Raw(b'{\n"a": 1}')), rows[3].origin)
    messages = list(make_encoder().encode_all(rows))
    assert messages[3].value == b'{"name":"raw","value":{\n"a": 1}}'
    assert messages[4].value == msgspec.json.encode(rows[4].value)


def test_the_first_row_that_json_cannot_hold_is_named_and_those_before_it_are_encoded() -> None:
    rows = list_rows()
    rows[3] = DeliveredRow(Value("wrong", object()), rows[3].origin)
    encoded = make_encoder().encode_all(rows)
    assert [next(encoded).value for _ in range(3)] == [msgspec.json.encode(row.value) for row in rows[:3]]
    with pytest.raises(RowUndeliverable, match="JSON cannot hold it") as named:
        next(encoded)
    assert named.value.row == rows[3].origin.identity
