"""Avro in the frame of a registry: read with the writer's schema, converted strictly, refused by name."""

from __future__ import annotations

import contextlib
import json
import pickle
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.declare.decoders.avro_schema import LEVELS_MAX
from lockstep.declare.decoders.base import DecodeCause, Undecodable, find_decode_cause
from lockstep.decoders import Avro, RegisteredSchema, SchemaReference
from lockstep.errors import DeclarationError
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate
from tests.support.decoders.readings import SNAPSHOT, TRADE, UPDATE, Side, Snapshot, Trade, Update, Where
from tests.support.decoders.registered import FIRST_ID, InMemory, avro, frame, zigzag

if TYPE_CHECKING:
    from collections.abc import Callable

A_TRADE = Trade(
    seq=7,
    id="t-7",
    price=Decimal("12.3450"),
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    side=Side.SELL,
    value=0.1,
    raw=b"\x00\xff",
    where=Where("r1", 3),
    tags=["a", "b"],
    counts={"x": 1},
    flag=True,
)
DECODE_ERRORS = (msgspec.MsgspecError, ValueError)
LIST = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"], "default": None}]}


class Node(msgspec.Struct):
    """A linked list: a record that contains its own type."""

    n: Node | None = None


class Tree(msgspec.Struct):
    """A tree: a record with an array of its own type."""

    n: list[Tree]


class Holder(msgspec.Struct):
    """A message inside another message."""

    body: Update


class Either(msgspec.Struct):
    """A message with a union inside."""

    body: Snapshot | Update


def plain(trade: Trade) -> dict[str, Any]:
    """Return the values that a producer passes to its serializer."""
    return {**msgspec.structs.asdict(trade), "side": trade.side.value, "where": msgspec.structs.asdict(trade.where)}


def decoder(message_type: object, *schemas: object, **options: str) -> Callable[[bytes], object]:
    return Avro(**options).build_with(InMemory(tuple(map(avro, schemas))), message_type)


def cause(decode: Callable[[bytes], object], value: bytes) -> tuple[DecodeCause, str]:
    with pytest.raises(DECODE_ERRORS) as refused:
        decode(value)
    return find_decode_cause(refused.value), str(refused.value)


def test_a_record_with_every_type_becomes_its_struct() -> None:
    assert decoder(Trade, TRADE)(frame(TRADE, plain(A_TRADE))) == A_TRADE


@given(
    st.builds(
        Trade,
        seq=st.integers(-(2**63), 2**63 - 1),
        price=st.decimals(-(10**13), 10**13, places=4),
        at=st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001  # bounds
        value=st.floats(allow_nan=False),
        where=st.builds(Where, floor=st.none() | st.integers(-(2**31), 2**31 - 1)),
        counts=st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=4),
        tags=st.lists(st.text(), max_size=4),
    )
)
def test_whatever_was_written_is_read(trade: Trade) -> None:
    assert decoder(Trade, TRADE)(frame(TRADE, plain(trade))) == trade


class Priced(msgspec.Struct):
    price: Decimal


def decimals(kind: Any, precision: int, scale: int) -> Any:
    price = {**kind, "logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": "record", "name": "Priced", "fields": [{"name": "price", "type": price}]}


BYTES = {"type": "bytes"}


@given(st.integers(1, 40), st.data())
def test_a_decimal_is_what_was_written_or_refused(precision: int, data: st.DataObject) -> None:
    """A decimal with more digits than its schema allows must not be rounded, for example 12345.67 to 12350."""
    scale = data.draw(st.integers(0, precision))
    digits = data.draw(st.integers(1, 60))
    unscaled = data.draw(st.integers(-(10**digits) + 1, 10**digits - 1))
    decode = decoder(Priced, decimals(BYTES, precision, scale))
    body = unscaled.to_bytes(30, "big", signed=True)  # a producer may send the sign more than once
    value = GOOD[:5] + zigzag(len(body)) + body
    if len(str(abs(unscaled))) > precision:
        problem = f"a decimal of 30 bytes has more digits than {precision} - at `$.price`"
        assert cause(decode, value) == (DecodeCause.MALFORMED, problem)
    else:
        message = decode(value)
        assert isinstance(message, Priced)
        assert message.price.as_tuple() == Decimal(f"{unscaled}E-{scale}").as_tuple()


def test_a_fixed_decimal_of_more_digits_than_its_precision_is_refused() -> None:
    decode = decoder(Priced, decimals({"type": "fixed", "name": "F", "size": 4}, 3, 1))
    assert decode(GOOD[:5] + (999).to_bytes(4, "big")) == Priced(Decimal("99.9"))
    assert cause(decode, GOOD[:5] + (1_000).to_bytes(4, "big"))[0] is DecodeCause.MALFORMED


def test_a_huge_decimal_is_refused_before_its_digits_are_made() -> None:
    """A decimal of a megabyte would take two minutes, in which nothing could interrupt the worker."""
    start = time.process_time()
    huge = zigzag(1_000_000) + b"\x12" * 1_000_000
    assert cause(decoder(Priced, decimals(BYTES, 9, 2)), GOOD[:5] + huge)[0] is DecodeCause.MALFORMED
    assert time.process_time() - start < 5


def test_none_in_the_message_type_is_for_tombstones_and_no_record() -> None:
    decode = decoder(Update | None, UPDATE)
    assert decode(frame(UPDATE, {"seq": 2, "id": "a", "value": 2.0})) == Update(2, "a", 2.0)
    assert cause(decode, b"")[0] is DecodeCause.TRUNCATED


def test_the_records_of_a_topic_become_the_members_of_a_union_by_name() -> None:
    decode = decoder(Snapshot | Update, SNAPSHOT, UPDATE)
    assert decode(frame(SNAPSHOT, {"seq": 1, "values": {"a": 1.0}})) == Snapshot(1, {"a": 1.0})
    assert decode(frame(UPDATE, {"seq": 2, "id": "a", "value": 2.0}, FIRST_ID + 1)) == Update(2, "a", 2.0)


def test_a_union_of_records_becomes_a_union_of_structs() -> None:
    schema = [SNAPSHOT, UPDATE]
    decode = decoder(Snapshot | Update, schema)
    assert decode(frame(schema, {"seq": 2, "id": "a", "value": 2.0})) == Update(2, "a", 2.0)
    alone = decoder(Update, schema)
    problem = "record acme.Snapshot is none of Update"
    assert cause(alone, frame(schema, {"seq": 1, "values": {}})) == (DecodeCause.WRONG_TYPE, problem)


def test_a_union_inside_of_a_record_is_told_apart_by_its_records_names() -> None:
    schema = {"type": "record", "name": "Either", "fields": [{"name": "body", "type": [SNAPSHOT, UPDATE]}]}
    decode = decoder(Either, schema)
    assert decode(frame(schema, {"body": {"seq": 2, "id": "a", "value": 2.0}})) == Either(Update(2, "a", 2.0))


def test_a_field_of_the_tags_name_tells_records_apart() -> None:
    fields = [{"name": "type", "type": "string"}, *UPDATE["fields"]]
    schema = {"type": "record", "name": "Message", "fields": fields}
    decode = decoder(Snapshot | Update, schema)
    update = {"seq": 2, "id": "a", "value": 2.0}
    assert decode(frame(schema, {"type": "Update", **update})) == Update(2, "a", 2.0)
    problem = "type = 'Upsert' is none of Snapshot, Update"
    assert cause(decode, frame(schema, {"type": "Upsert", **update})) == (DecodeCause.WRONG_TYPE, problem)


def test_messages_of_older_and_newer_writers_are_read_side_by_side() -> None:
    newer = {**UPDATE, "fields": [*UPDATE["fields"], {"name": "unit", "type": "string"}]}
    decode = decoder(Update, UPDATE, newer)
    assert decode(frame(UPDATE, {"seq": 1, "id": "a", "value": 1.0})) == Update(1, "a", 1.0)
    assert decode(frame(newer, {"seq": 2, "id": "a", "value": 2.0, "unit": "V"}, FIRST_ID + 1)) == Update(2, "a", 2.0)


def test_a_readers_schema_brings_its_aliases_and_defaults() -> None:
    older = {"type": "record", "name": "Update", "fields": [{"name": "number", "type": "int"}]}
    own = {
        "type": "record",
        "name": "Update",
        "fields": [
            {"name": "seq", "aliases": ["number"], "type": "long"},
            {"name": "id", "type": "string", "default": "none"},
            {"name": "value", "type": "double", "default": 0.5},
        ],
    }
    decode = decoder(Update, older, reader_schema=json.dumps(own))
    assert decode(frame(older, {"number": 3})) == Update(3, "none", 0.5)


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("own_record", ["Update", "Renamed"])
def test_a_field_that_is_there_by_its_name_and_by_an_alias_is_read_by_its_name(own_record: str, place: int) -> None:
    """Neither may the old value be read nor a message refused: a renaming producer writes both fields for a while."""
    fields: Any = UPDATE["fields"]
    writers = {**UPDATE, "fields": [*fields[:place], {"name": "number", "type": "long"}, *fields[place:]]}
    renamed = {**fields[0], "aliases": ["number"]}
    own = {"type": "record", "name": own_record, "aliases": ["acme.Update"], "fields": [renamed, *fields[1:]]}
    message = {"number": 1, "seq": 2, "id": "a", "value": 2.0}
    for written in (writers, [SNAPSHOT, writers]):
        decode = decoder(Update, written, reader_schema=json.dumps(own))
        assert decode(frame(written, message)) == Update(2, "a", 2.0)


class Odd(msgspec.Struct):
    """Fields whose Avro defaults differ from their form in JSON."""

    seq: int
    price: Decimal
    at: datetime
    day: date
    raw: bytes
    parts: list[bytes]
    by_name: dict[str, bytes]
    inner: Priced
    maybe: Decimal | None
    code: UUID


PRICE: Any = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DEFAULTS: dict[str, tuple[Any, Any, object]] = {
    "price": (PRICE, "1", Decimal("0.49")),  # the byte 0x31
    "at": ({"type": "long", "logicalType": "timestamp-micros"}, 0, datetime(1970, 1, 1, tzinfo=UTC)),
    "day": ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    "raw": ({"type": "fixed", "name": "Two", "size": 2}, "\u0000\u00ff", b"\x00\xff"),
    "parts": ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    "by_name": ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, {"a": b"\xff"}),
    "inner": (decimals(BYTES, 4, 2), {"price": "\u0005"}, Priced(Decimal("0.05"))),
    "maybe": (["null", PRICE], "\u0007", Decimal("0.07")),
    "code": ({"type": "string", "logicalType": "uuid"}, str(UUID(int=7)), UUID(int=7)),
}


def test_a_readers_default_has_the_type_of_its_field() -> None:
    """A default must not be read in its JSON form, such as "1" as 1 for a decimal, nor refuse each message."""
    seq = {"name": "seq", "type": "long"}
    fields = [{"name": name, "type": kind, "default": default} for name, (kind, default, _) in DEFAULTS.items()]
    own, older = ({"type": "record", "name": "Odd", "fields": each} for each in ([seq, *fields], [seq]))
    expected: Any = {name: value for name, (_, _, value) in DEFAULTS.items()}
    decode = decoder(Odd, older, reader_schema=json.dumps(own))
    assert decode(frame(older, {"seq": 3})) == Odd(seq=3, **expected)


@pytest.mark.parametrize(
    ("kind", "default"), [(PRICE, "\u007f\u007f"), ("bytes", "\u0100"), (DEFAULTS["code"][0], "no uuid")]
)
def test_a_readers_default_that_is_no_value_of_its_type_is_refused_when_declared(kind: Any, default: str) -> None:
    own = {"type": "record", "name": "Odd", "fields": [{"name": "x", "type": kind, "default": default}]}
    with pytest.raises(DeclarationError, match=r"Avro.reader_schema = .*default of field x: "):
        Avro(reader_schema=json.dumps(own)).build(Update)


@pytest.mark.parametrize("default", [None, "0", 0.0, {}])
def test_a_writers_default_may_fit_no_type(default: object) -> None:
    """It is not used, and registries accepted any default for years: messages of such schemas must be accepted."""
    fields: Any = UPDATE["fields"]
    schema = {**UPDATE, "fields": [{**fields[0], "default": default}, *fields[1:]]}
    decode = decoder(Update, schema)
    assert decode(frame(UPDATE, {"seq": 2, "id": "a", "value": 2.0})) == Update(2, "a", 2.0)
    outer = {"type": "record", "name": "Either", "fields": [{"name": "body", "type": "acme.Update"}]}
    reference = SchemaReference("acme.Update", json.dumps(schema))
    decode = Avro().build_with(InMemory((RegisteredSchema("AVRO", json.dumps(outer), (reference,)),)), Holder)
    assert decode(frame(UPDATE, {"seq": 2, "id": "a", "value": 2.0})) == Holder(Update(2, "a", 2.0))


UNIT = {"name": "unit", "type": "string"}
RESOLVED: dict[str, tuple[dict[str, Any], str]] = {
    "a field without a default": (
        UPDATE | {"fields": [*UPDATE["fields"], UNIT]},
        "acme.Update has no field unit, and it has no default",
    ),
    "another type": (
        UPDATE | {"fields": [{"name": name, "type": "string"} for name in ("seq", "id", "value")]},
        "long is not string",
    ),
    "another record": (UPDATE | {"name": "acme.Other"}, "record acme.Update is not record acme.Other"),
}


@pytest.mark.parametrize("what", RESOLVED)
def test_a_message_that_does_not_resolve_to_the_readers_schema_is_refused(what: str) -> None:
    own, problem = RESOLVED[what]
    decode = decoder(Update, UPDATE, reader_schema=json.dumps(own))
    said = f"schema {FIRST_ID}: cannot be resolved to Avro.reader_schema: {problem}"
    assert cause(decode, frame(UPDATE, {"seq": 2, "id": "a", "value": 2.0})) == (DecodeCause.UNFIT_SCHEMA, said)


@pytest.mark.parametrize("writers", [UPDATE, [SNAPSHOT, UPDATE]])
@pytest.mark.parametrize("own", [UPDATE, [SNAPSHOT, UPDATE]])
def test_a_record_and_a_union_resolve_to_each_other(writers: Any, own: Any) -> None:
    """A record of a union must not be read as an array, and a record must match its type in a union."""
    update = {"seq": 2, "id": "a", "value": 2.0}
    message_type = Update if own is UPDATE else Snapshot | Update
    decode = decoder(message_type, writers, reader_schema=json.dumps(own))
    assert decode(frame(writers, update)) == Update(2, "a", 2.0)


@pytest.mark.parametrize("writers", [["null", UPDATE], ["null", SNAPSHOT, UPDATE]])
@pytest.mark.parametrize("own", [["null", UPDATE], ["null", SNAPSHOT, UPDATE]])
def test_a_union_inside_of_a_record_resolves_to_one_of_more_or_fewer_records(writers: Any, own: Any) -> None:
    def either(union: Any) -> dict[str, Any]:
        return {"type": "record", "name": "Either", "fields": [{"name": "body", "type": union}]}

    decode = decoder(Either, either(writers), reader_schema=json.dumps(either(own)))
    assert decode(frame(either(writers), {"body": {"seq": 2, "id": "a", "value": 2.0}})) == Either(Update(2, "a", 2.0))


def test_a_record_resolves_to_a_record_of_a_union_by_its_alias() -> None:
    own = [SNAPSHOT, {**UPDATE, "aliases": ["acme.Changed"]}]
    decode = decoder(Snapshot | Update, older := {**UPDATE, "name": "acme.Changed"}, reader_schema=json.dumps(own))
    assert decode(frame(older, {"seq": 2, "id": "a", "value": 2.0})) == Update(2, "a", 2.0)
    decode = decoder(Snapshot | Update, other := {**UPDATE, "name": "acme.Other"}, reader_schema=json.dumps(own))
    own_records = "one of record acme.Snapshot, record acme.Update"
    problem = f"schema 101: cannot be resolved to Avro.reader_schema: record acme.Other is not {own_records}"
    assert cause(decode, frame(other, {"seq": 2, "id": "a", "value": 2.0})) == (DecodeCause.UNFIT_SCHEMA, problem)


def test_a_schema_is_read_with_those_that_it_refers_to() -> None:
    where: Any = next(one["type"] for one in TRADE["fields"] if one["name"] == "where")  # type: ignore[index]  # its own
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "where", "type": "acme.Where"}]}
    named = {**where, "namespace": "acme"}
    registered = RegisteredSchema("AVRO", json.dumps(outer), (SchemaReference("acme.Where", json.dumps(named)),))

    class Outer(msgspec.Struct):
        where: Where

    whole = {"type": "record", "name": "Outer", "fields": [{"name": "where", "type": named}]}
    decode = Avro().build_with(InMemory((registered,)), Outer)
    assert decode(frame(whole, {"where": {"room": "r", "floor": 1}})) == Outer(Where("r", 1))


WHOLE: Any = {"type": "record", "name": "acme.Whole", "fields": [{"name": "inner", "type": [SNAPSHOT, UPDATE]}]}


@pytest.mark.parametrize("referred", [[SNAPSHOT, UPDATE], [WHOLE]])
def test_a_union_of_schemas_that_it_refers_to_is_read(referred: list[Any]) -> None:
    """Each event type of a topic may have its own schema: such messages must not be refused as not fitting a schema."""
    references = tuple(SchemaReference(f"acme.{one['name']}", json.dumps(one)) for one in referred)
    registered = RegisteredSchema("AVRO", json.dumps(["acme.Snapshot", "acme.Update"]), references)
    update = {"seq": 2, "id": "a", "value": 2.0}
    decode = Avro().build_with(InMemory((registered,)), Snapshot | Update)
    assert decode(frame([SNAPSHOT, UPDATE], update)) == Update(2, "a", 2.0)
    decode = Avro(reader_schema=json.dumps(UPDATE)).build_with(InMemory((registered,)), Update)
    assert decode(frame([SNAPSHOT, UPDATE], update)) == Update(2, "a", 2.0)
    alone = RegisteredSchema("AVRO", '"acme.Update"', references)
    assert Avro().build_with(InMemory((alone,)), Update)(frame(UPDATE, update)) == Update(2, "a", 2.0)


GOOD = frame(UPDATE, {"seq": 2, "id": "abc", "value": 2.0})
REFUSED = {
    "empty": (b"", DecodeCause.TRUNCATED, "a frame starts with 5 bytes, this has 0"),
    "no frame": (b'{"seq":1}', DecodeCause.UNKNOWN_MAGIC_BYTE, "a frame starts with 0x00, this with 0x7b"),
    "half a header": (GOOD[:3], DecodeCause.TRUNCATED, "a frame starts with 5 bytes, this has 3"),
    "header alone": (GOOD[:5], DecodeCause.TRUNCATED, "the message ends too early"),
    "cut": (GOOD[:-1], DecodeCause.TRUNCATED, "the message ends too early"),
    "trailing": (GOOD + b"\x00", DecodeCause.TRAILING, "1 bytes after the message"),
    "unknown id": (b"\x00\x00\x00\x00\x07" + GOOD[5:], DecodeCause.UNKNOWN_SCHEMA_ID, "knows no schema id 7"),
    "bad UTF-8": (GOOD[:5] + zigzag(2) + zigzag(1) + b"\xff" + bytes(8), DecodeCause.MALFORMED, "can't decode"),
    "a length below zero": (GOOD[:5] + zigzag(2) + zigzag(-4) + bytes(8), DecodeCause.MALFORMED, "a length of -4"),
    "a huge length": (GOOD[:5] + zigzag(2) + zigzag(2**40) + bytes(8), DecodeCause.TRUNCATED, "ends too early"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_exactly_a_message_is_refused_with_its_cause(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.declare.decoders.schema_registry.SECOND_LOOK_SECONDS", 0.0)
    value, expected, problem = REFUSED[what]
    found, said = cause(decoder(Update, UPDATE), value)
    assert (found, problem in said) == (expected, True), said


def test_a_field_of_another_type_or_without_a_value_is_named() -> None:
    text = {**UPDATE, "fields": [*UPDATE["fields"][:2], {"name": "value", "type": "string"}]}
    assert cause(decoder(Update, text), frame(text, {"seq": 1, "id": "a", "value": "x"})) == (
        DecodeCause.WRONG_TYPE,
        "Expected `float`, got `str` - at `$.value`",
    )
    short = {**UPDATE, "fields": UPDATE["fields"][:2]}
    assert cause(decoder(Update, short), frame(short, {"seq": 1, "id": "a"})) == (
        DecodeCause.MISSING_FIELD,
        "Object missing required field `value`",
    )


def test_a_string_is_never_taken_for_bytes() -> None:
    class Raw(msgspec.Struct):
        raw: bytes

    schema = {"type": "record", "name": "Raw", "fields": [{"name": "raw", "type": "string"}]}
    problem = "Expected `bytes`, got `str` - at `$.raw`"
    assert cause(decoder(Raw, schema), frame(schema, {"raw": "aGk="})) == (DecodeCause.WRONG_TYPE, problem)


UNFIT: dict[str, tuple[object, str]] = {
    "no record": ("string", "is neither a record nor a union of records"),
    "no schema": ({"type": "rekord", "name": "R"}, "cannot be parsed"),
    "another record": ({**UPDATE, "name": "Other"}, "record acme.Other is none of Snapshot, Update"),
    "an array of nothing": (
        {"type": "record", "name": "B", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]},
        "a small message could be endless",
    ),
    "an array of empty records": (
        {
            "type": "record",
            "name": "B",
            "fields": [
                {"name": "e", "type": {"type": "record", "name": "E", "fields": []}},
                {"name": "a", "type": {"type": "array", "items": "E"}},
            ],
        },
        "a small message could be endless",
    ),
}


def doubled(levels: int) -> dict[str, Any]:
    """Return a record that holds the record below twice: of zero bytes, and 2^levels values."""
    below: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": below}, {"name": "b", "type": f"R{level - 1}"}]
        below = {"type": "record", "name": f"R{level}", "fields": fields}
    return below


UNFIT |= {
    "records of nothing, twice at each level": (
        {"type": "record", "name": "Update", "fields": [{"name": "a", "type": doubled(40)}]},
        "a value with more than 1000 values without bytes: a small message could fill the memory",
    ),
    "an array of records of nothing, twice at each level": (
        {"type": "record", "name": "B", "fields": [{"name": "a", "type": {"type": "array", "items": doubled(40)}}]},
        "a small message could be endless",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_schema_that_holds_no_message_of_the_stream_refuses_its_messages_alone(what: str) -> None:
    schema, problem = UNFIT[what]
    decode = decoder(Snapshot | Update, UPDATE, schema)
    for _ in range(2):
        found, said = cause(decode, b"\x00" + (FIRST_ID + 1).to_bytes(4, "big") + b"\x02" * 30)
        assert (found, problem in said) == (DecodeCause.UNFIT_SCHEMA, True), said
    assert decode(GOOD) == Update(2, "abc", 2.0)


def test_a_schema_of_another_format_is_refused() -> None:
    decode = Avro().build_with(InMemory((RegisteredSchema("JSON", "{}"),)), Update)
    assert cause(decode, GOOD) == (DecodeCause.UNFIT_SCHEMA, f"schema {FIRST_ID}: is of type JSON, not AVRO")


def nested(levels: int) -> list[Any]:
    """Return a union of records, each nested in the next; neither its text nor its JSON is deep."""
    types = ["int", *(f"R{level}" for level in range(levels))]
    return [
        {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": one}]}
        for level, one in enumerate(types)
    ]


@pytest.mark.parametrize("levels", [LEVELS_MAX + 1, 3_000])
def test_a_schema_of_too_many_types_inside_of_each_other_is_refused(levels: int) -> None:
    body = zigzag(0) + b"\x00"
    found, said = cause(decoder(Update, nested(levels)), GOOD[:5] + body)
    assert (found, "more than 100 types inside of each other" in said) == (DecodeCause.UNFIT_SCHEMA, True)
    as_far_as_that = decoder(Update, nested(LEVELS_MAX - 1))
    assert cause(as_far_as_that, GOOD[:5] + body) == (DecodeCause.WRONG_TYPE, "record R0 is none of Update")


TOO_DEEP = (DecodeCause.TOO_DEEP, "the message is nested too deeply")


def test_a_message_is_nested_as_deeply_as_the_limit_wherever_it_is_read() -> None:
    """Python's own limit also counts the calls around the decoder, so a prover and a task could differ."""
    decode = decoder(Node, LIST)

    def read(levels: int, calls: int) -> object:
        return read(levels, calls - 1) if calls else decode(GOOD[:5] + b"\x02" * levels + b"\x00")

    for calls in (0, 100):
        assert isinstance(read(LEVELS_MAX, calls), Node)
        with pytest.raises(Undecodable, match=TOO_DEEP[1]):
            read(LEVELS_MAX + 1, calls)


def test_a_message_deeper_than_any_stack_is_refused() -> None:
    assert cause(decoder(Node, LIST), GOOD[:5] + b"\x02" * 3_000_000 + b"\x00")[0] is DecodeCause.TOO_DEEP


def test_levels_of_an_array_count_and_a_refused_message_leaves_no_trace() -> None:
    """Each level of a tree of arrays counts twice: the record and the array."""
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "n", "type": {"type": "array", "items": "Tree"}}]}
    decode = decoder(Tree, tree)
    for levels, fits in ((LEVELS_MAX // 2, True), (LEVELS_MAX // 2 + 1, False)) * 3:
        body = GOOD[:5] + b"\x02" * levels + b"\x00" * (levels + 1)
        assert isinstance(decode(body), Tree) if fits else cause(decode, body)[0] is DecodeCause.TOO_DEEP


@given(st.binary(max_size=200), st.sampled_from([Trade, Snapshot | Update, Node, Either]))
def test_random_bytes_raise_nothing_but_a_decode_error(body: bytes, message_type: object) -> None:
    either = {"type": "record", "name": "Either", "fields": [{"name": "body", "type": [SNAPSHOT, UPDATE]}]}
    decode = decoder(message_type, TRADE, [SNAPSHOT, UPDATE], LIST, either)
    for number in range(4):
        with contextlib.suppress(*DECODE_ERRORS):
            decode(b"\x00" + (FIRST_ID + number).to_bytes(4, "big") + body)


@pytest.mark.parametrize("message_type", [bytes, dict, int | str, ProtoUpdate, type(None)])
def test_a_message_type_that_avro_cannot_make_is_refused_when_declared(message_type: object) -> None:
    with pytest.raises(DeclarationError, match=r"Stream.transform = .*\n  next: use a msgspec.Struct"):
        Avro().build(message_type)


def test_a_readers_schema_that_is_none_is_refused_when_declared() -> None:
    with pytest.raises(DeclarationError, match=r"Avro.reader_schema = .*cannot be parsed"):
        Avro(reader_schema='{"type": "rekord"}').build(Update)


def test_a_decoder_goes_to_executors_and_comes_back_equal() -> None:
    one = Avro(reader_schema=json.dumps(UPDATE))
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301  # made here
