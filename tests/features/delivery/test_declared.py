"""Wrong deliveries are refused at their declaration, with the field and a valid value."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta
from itertools import product
from typing import Any

import msgspec
import pytest

from lockstep.delivery import Delivery, KafkaTopic
from lockstep.errors import DeclarationError
from lockstep.features.delivery.deliver import UnknownDelivery, choose_deliveries, list_deliveries
from lockstep.features.delivery.registered_schema import ValueSchema
from lockstep.features.history.shadow import name_shadow
from tests.features.delivery.delivering import is_positive, to_doubled
from tests.support.adding_stream import Reading, adding

TOPIC = KafkaTopic(topic="moves")


def without_origin(row: Reading) -> bool:
    """Take only a row: a wrong signature."""
    return bool(row)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", "two words"),
        ("topic", ".."),
        ("topic", "x" * 250),
        ("topic", 7),
        ("tokens", "moves"),
        ("transaction_rows", 0),
        ("transaction_rows", 50_001),
        ("transaction_rows", True),
        ("transaction_seconds", 0),
        ("transaction_seconds", 21),
    ],
)
def test_a_wrong_field_of_a_topic_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=rf"KafkaTopic\.{field}"):
        KafkaTopic(**{"topic": "moves", field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Large Moves"),
        ("name", None),
        ("target", "moves"),
        ("where", lambda row, origin: True),  # noqa: ARG005  # a lambda
        ("where", without_origin),
        ("select", "name"),
        ("first_rows", "all"),
        ("holds_rows", 7),
        ("holds_rows", timedelta(0)),
    ],
)
def test_a_wrong_field_of_a_delivery_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=rf"Delivery\.{field}"):
        Delivery(**{"name": "moves", "target": TOPIC, field: value})


@pytest.mark.parametrize(
    ("deliveries", "problem"),
    [
        ("moves", "is not a sequence of deliveries"),
        ((TOPIC,), "is not a Delivery"),
        ((Delivery(name="a", target=TOPIC), Delivery(name="a", target=KafkaTopic(topic="b"))), "two deliveries"),
        ((Delivery(name="a", target=TOPIC), Delivery(name="b", target=TOPIC)), "is the target of a, too"),
        ((Delivery(name="a", target=KafkaTopic(topic="source.x")),), "that the stream itself reads"),
        ((Delivery(name="a", target=KafkaTopic(topic="b", tokens="source.x")),), "that the stream itself reads"),
    ],
)
def test_deliveries_that_do_not_fit_their_stream_are_refused(deliveries: Any, problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        dataclasses.replace(adding(r"source\..+"), deliveries=deliveries)


def test_two_streams_with_deliveries_to_one_topic_are_refused() -> None:
    streams = [
        dataclasses.replace(adding(r"source\..+"), name=name, deliveries=(Delivery(name=f"of_{name}", target=TOPIC),))
        for name in ("one", "two")
    ]
    with pytest.raises(DeclarationError, match="is the target of of_one, too"):
        list_deliveries(streams)


def test_executors_and_shadows_get_no_deliveries() -> None:
    delivery = Delivery(name="a", target=TOPIC, where=is_positive, select=to_doubled)
    stream = dataclasses.replace(adding(r"source\..+"), deliveries=(delivery,))
    assert pickle.loads(stream.shipped()).deliveries == ()  # noqa: S301  # bytes made above
    assert name_shadow(stream, "shadow").deliveries == ()


def test_an_unknown_name_lists_those_that_are_known() -> None:
    known = list_deliveries([dataclasses.replace(adding("x"), deliveries=(Delivery(name="a", target=TOPIC),))])
    assert [each.delivery.name for each in choose_deliveries(None, known)] == ["a"]
    with pytest.raises(UnknownDelivery) as unknown:
        choose_deliveries("b", known)
    assert unknown.value.next_step == "deliveries: a"


def test_the_digest_of_the_code_is_that_of_both_functions() -> None:
    functions = product((None, is_positive), (None, to_doubled))
    made = [Delivery(name="a", target=TOPIC, where=where, select=select) for where, select in functions]
    assert len({each.digest_code() for each in made}) == len(made)


def test_the_digest_of_the_code_is_that_of_the_type_of_the_values() -> None:
    """A new field of the row type changes the value of its message."""
    grown = msgspec.defstruct("Reading", [("name", str), ("value", int), ("total", int), ("note", str | None, None)])
    unstorable = msgspec.defstruct("Unstorable", [("either", int | str)])

    def digest(row: type[msgspec.Struct], select: Any = None) -> str:
        delivery = Delivery(name="a", target=TOPIC, select=select)
        return ValueSchema(delivery, TOPIC, row, None).digest_code("code")

    assert digest(Reading) != digest(grown)
    assert digest(Reading, to_doubled) == digest(grown, to_doubled), "its values are of the type of its result"
    assert digest(unstorable) == "code"
