"""A wrong lookup is refused when it is declared, and a lookup is read only if a version is pinned."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

from lockstep import Lookup
from lockstep.declare.discovery import digest_code
from lockstep.declare.lookup import LookupNotBound, bind_lookups, without_lookups
from lockstep.declare.naming import NO_NAME
from lockstep.declare.stream import format_source
from lockstep.errors import DeclarationError
from lockstep.operations.show_settings import list_options
from tests.support.weighing_stream import WEIGHTS, Weight, weighing

if TYPE_CHECKING:
    from collections.abc import Callable


class Mutable(msgspec.Struct):
    name: str


class Nested(msgspec.Struct, frozen=True):
    name: str
    tags: list[str]


class Timed(msgspec.Struct, frozen=True):
    name: str
    at: Annotated[datetime, msgspec.Meta(tz=False)]


def weights(**changes: Any) -> Callable[[], object]:
    given: dict[str, Any] = {"name": "weights", "path": "weights", "key": "name", "row": Weight, **changes}
    return lambda: Lookup(given.pop("name"), given.pop("path"), **given)


def declared(*lookups: Any) -> Callable[[], object]:
    return lambda: replace(weighing(r"t\..+"), lookups=lookups)


PATHS = "'/data/instruments', or 'customers/derived' under the table root"
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a name in capitals": (
        weights(name="Weights"),
        f"Lookup.name = 'Weights': {NO_NAME}\n  next: for example 'instruments'",
    ),
    "no path": (weights(path=""), f"Lookup.path = '': is not a folder\n  next: {PATHS}"),
    "a path that is none": (weights(path=7), f"Lookup.path = 7: is not a folder\n  next: {PATHS}"),
    "an address": (
        weights(path="s3://bucket/weights"),
        f"Lookup.path = 's3://bucket/weights': is an address, and tables are read from folders\n  next: {PATHS}",
    ),
    "a path out of the root": (
        weights(path="../weights"),
        f"Lookup.path = '../weights': leaves the table root\n  next: {PATHS}",
    ),
    "a row that is no Struct": (
        weights(row=dict),
        "Lookup.row = <class 'dict'>: is not a msgspec.Struct\n  next: declare the row as one, with frozen=True",
    ),
    "a row that a fold may change": (
        weights(row=Mutable),
        (
            f"Lookup.row = {Mutable!r}: can be changed by a fold, and all sessions share it\n"
            "  next: class Mutable(msgspec.Struct, frozen=True)"
        ),
    ),
    "a column that is a list": (
        weights(row=Nested),
        "Nested.tags = 'list': is a list, and a lookup has plain columns\n  next: leave it out",
    ),
    "a column without a type": (
        weights(row=Timed),
        (
            "Timed.at = <class 'datetime.datetime'>: asks for times without a zone\n"
            "  next: use aware datetimes: the table holds UTC"
        ),
    ),
    "a key that is no field": (
        weights(key="symbol"),
        "Lookup.key = 'symbol': is not a field of Weight\n  next: one of name, factor",
    ),
    "no rows at all": (
        weights(rows_max=0),
        "Lookup.rows_max = 0: is not a number of rows\n  next: for example 1_000_000",
    ),
    "a path instead of a lookup": (
        declared("weights"),
        "Stream.lookups = 'weights': is not a lookup\n  next: for example (INSTRUMENTS,)",
    ),
    "two of one name": (
        declared(WEIGHTS, Lookup("weights", "/data/weights", key="name", row=Weight)),
        "Stream.lookups = 'weights': is the name of two lookups\n  next: rename one of them",
    ),
    "the table of the stream itself": (
        declared(Lookup("own", "weighing/ledger", key="name", row=Weight)),
        (
            "Lookup.path = 'weighing/ledger': is a table of the stream itself, which a batch cannot read before it is "
            "committed\n  next: keep what a session must remember in its state"
        ),
    ),
    "one lookup that is no sequence": (
        lambda: replace(weighing(r"t\..+"), lookups=WEIGHTS),  # type: ignore[arg-type]  # wrong on purpose
        f"Stream.lookups = {WEIGHTS!r}: is not of type Sequence\n  next: for example (INSTRUMENTS,)",
    ),
}


@pytest.mark.parametrize(("declare", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_when_it_is_declared(declare: Callable[[], object], text: str) -> None:
    with pytest.raises(DeclarationError) as wrong:
        declare()
    assert str(wrong.value) == text


def test_a_row_type_that_executors_cannot_import_is_refused() -> None:
    class Local(msgspec.Struct, frozen=True):
        name: str

    with pytest.raises(DeclarationError, match="executors cannot import it"):
        declared(Lookup("local", "local", key="name", row=Local))()


def test_a_stream_with_lookups_is_the_same_on_an_executor() -> None:
    stream = weighing(r"t\..+")
    assert pickle.loads(stream.shipped()) == stream  # noqa: S301  # made here


def test_rows_are_read_where_they_are_bound_and_nowhere_else() -> None:
    with pytest.raises(LookupNotBound, match="lookup weights was read while no version of its table was pinned"):
        WEIGHTS.get("a")
    with bind_lookups({"weights": {"a": Weight("a", 2)}}):
        assert WEIGHTS.get("a") == Weight("a", 2)
        assert WEIGHTS.get("b") is None
        assert WEIGHTS.get(None) is None
        with bind_lookups({}), pytest.raises(LookupNotBound):
            WEIGHTS.get("a")
        with pytest.raises(LookupNotBound):
            without_lookups(WEIGHTS.get)("a")
        assert WEIGHTS.get("a") == Weight("a", 2)
    with pytest.raises(LookupNotBound):
        WEIGHTS.get("a")


def test_a_lookup_is_shown_as_it_is_written() -> None:
    text = 'Lookup(name="weights", path="weights", key="name", row=Weight)'
    assert format_source(WEIGHTS) == text
    options = list_options({"weighing": weighing(r"t\..+")}).options
    assert [each.value for each in options if each.name == "weighing.lookups.weights"] == [text]


def test_another_lookup_is_other_code() -> None:
    stream = weighing(r"t\..+")
    moved = replace(stream, lookups=(replace(WEIGHTS, path="other"),))
    assert len({digest_code(each) for each in (stream, moved, replace(stream, lookups=()))}) == 3
