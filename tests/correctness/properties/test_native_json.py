"""`lockstep-native` reads a message as msgspec does, or not at all; it reads no message that msgspec refuses."""

from __future__ import annotations

import struct
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import astuple

from lockstep import ColumnFold
from lockstep.engine.executor.column_program import compile_columns
from lockstep.native import make_array
from lockstep.table.row_encoder import RowsBuilder
from tests.support.gauges import AllGauges, Gauge, GaugeChange, Part, Whole, make_gauges
from tests.support.native import needs_extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.declare.stream import AnyStream

pytestmark = needs_extension


class Snapshot(msgspec.Struct, tag="snapshot"):
    """Sets all rows."""

    session: str
    number: int
    at: int
    rows: list[Whole]


class Update(msgspec.Struct, tag="update"):
    """Changes rows; has an unused field of each type."""

    session: str
    number: int
    at: int
    rows: list[Part]
    ratio: float = 0.5
    is_late: bool = False
    remark: str = ""
    total: int = 0


class Columns(ColumnFold[Snapshot | Update, str, Gauge, GaugeChange]):
    fields = replace_fields(AllGauges.fields, snapshot=Snapshot, end=None, session="session")


PROGRAM = compile_columns(cast("AnyStream", make_gauges(cast("AllGauges", Columns()))), RowsBuilder(GaugeChange).schema)
DECODE = msgspec.json.Decoder(Snapshot | Update).decode
NOTHING = ("", 0.0, 0, False)
COLUMNS: tuple[pa.DataType, ...] = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.bool_(), pa.string())
Read = tuple[str, int, int, list[tuple[object, ...]]]
"""Session, number, time, and for each change the key and the columns after it."""


def read(value: bytes) -> Read | None:
    """Read a message by the extension; return None if the extension refuses it."""
    assert PROGRAM is not None
    assert PROGRAM.make_table is not None
    table = PROGRAM.make_table()
    names = table.read([value], None)
    if names is None:
        return None
    table.add([NOTHING] * len(table.missing()))
    columns, counts = table.change((0, 1, 2, 3, 4), 10**6)
    (size,) = struct.unpack("q", counts)
    made = [make_array(kind, size, buffers).to_pylist() for kind, buffers in zip(COLUMNS, columns, strict=True)]
    assert set(made.pop()) == set(names)
    (number,), (at,) = struct.unpack("q", table.sequences()), struct.unpack("q", table.times())
    return names[0], number, at, list(zip(*made, strict=True))


def expect(value: bytes) -> Read | None:
    """Read a message by msgspec; return None if it is not an update."""
    try:
        message = DECODE(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(message, Update):
        return None
    rows = dict[str, tuple[object, ...]]()
    changed = list[tuple[object, ...]]()
    for key, *values in map(astuple, message.rows):
        before = rows.get(key, NOTHING)
        rows[key] = tuple(old if new is UNSET else new for old, new in zip(before, values, strict=True))
        changed.append((key, *rows[key]))
    return message.session, message.number, message.at, changed


def assert_alike(value: bytes) -> None:
    came = read(value)
    if came is not None:
        assert repr(came) == repr(expect(value))  # -0.0 is not 0.0


FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(repr)
INTEGERS = st.integers(-5, 10**18 - 1).map(str)
ODD_NUMBERS = st.one_of(
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(["-0", "-0.0", "0", "00", "01", "1.", ".5", "+1", "1e400", "1E-400", "-", "1e", "NaN", "Infinity"]),
)
ODD_PIECES = [r"\ud83d", r"\ude00", r"\u12", r"\x", "\t", "\x00", '"']


def texts(pieces: list[str]) -> st.SearchStrategy[str]:
    """Return strings of some pieces."""
    return st.lists(st.sampled_from(pieces), max_size=4).map(lambda made: f'"{"".join(made)}"')


TEXTS = texts(["a", "\N{SNOWMAN}", r"\n", r"\/", r"\"", r"\\", r"\u00e9"])
WORDS = st.sampled_from(["true", "false", "null", "tru", "[]", "{}", "[1,[2]]", '{"a":{"b":null}}', "[1,]", '{"a"}'])
SPACE = st.sampled_from(["", "", "", " ", "\n\t", "\r "])
ANYTHING = st.one_of(FLOATS, INTEGERS, ODD_NUMBERS, TEXTS, texts(ODD_PIECES), WORDS)


def objects(
    required: dict[str, st.SearchStrategy[str]], optional: dict[str, st.SearchStrategy[str]]
) -> st.SearchStrategy[str]:
    """Return objects with these members and some more, in any order and with any space between them."""
    pairs = {name: st.tuples(st.just(name), value) for name, value in (required | optional).items()}
    more = st.lists(st.one_of(*(pairs[name] for name in optional)), max_size=3, unique_by=lambda pair: pair[0])
    odd = st.lists(st.tuples(st.sampled_from([*pairs, "other", r"r\u0061tio"]), ANYTHING), max_size=1)
    odd = st.one_of(st.just([]), st.just([]), odd)
    members = st.tuples(st.tuples(*(pairs[name] for name in required)), more, odd)
    shuffled = members.flatmap(lambda parts: st.permutations([each for part in parts for each in part]))
    return st.tuples(shuffled, SPACE).map(lambda made: _write(*made))


def _write(members: Sequence[tuple[str, str]], space: str) -> str:
    return "{" + f",{space}".join(f'"{name}"{space}:{value}' for name, value in members) + space + "}"


ROWS = objects(
    {"name": TEXTS},
    {
        "text": TEXTS,
        "level": st.one_of(FLOATS, FLOATS, FLOATS, ODD_NUMBERS),
        "count": INTEGERS,
        "isOpen": st.sampled_from(["true", "false"]),
    },
)
UPDATES = objects(
    {
        "type": st.just('"update"'),
        "session": TEXTS,
        "number": INTEGERS,
        "at": INTEGERS,
        "rows": st.lists(ROWS, min_size=1, max_size=3).map(lambda rows: f"[{','.join(rows)}]"),
    },
    {"ratio": FLOATS, "remark": TEXTS, "total": INTEGERS, "other": ANYTHING},
)
EXAMPLES = settings().max_examples


@settings(max_examples=2 * EXAMPLES)
@given(text=UPDATES)
def test_what_is_read_is_read_as_msgspec_reads_it(text: str) -> None:
    assert_alike(text.encode())


PLAIN = (
    b'{"type":"update","session":"a","number":7,"at":5,"rows":[{"name":"x","level":1.5,"isOpen":true},'
    b'{"name":"y","text":"\\u00e9 \xe2\x98\x83","count":-3}],"ratio":2,"other":[{"a":null}]}'
)


@settings(max_examples=4 * EXAMPLES)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(PLAIN)),
            st.integers(0, 2),
            st.one_of(st.binary(max_size=2), st.sampled_from([b'"', b"0", b" "])),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_damaged_message_is_read_as_msgspec_reads_it_or_not_at_all(edits: list[tuple[int, int, bytes]]) -> None:
    value = PLAIN
    for at, removed, added in edits:
        value = value[:at] + added + value[at + removed :]
    assert_alike(value)


@pytest.mark.parametrize("until", range(len(PLAIN)))
def test_a_message_that_is_cut_is_not_read(until: int) -> None:
    assert read(PLAIN[:until]) is None


def with_value(field: str, value: str) -> bytes:
    return PLAIN.replace(b'"level":1.5', f'"{field}":{value}'.encode())


@pytest.mark.parametrize(
    "value",
    [
        PLAIN,
        PLAIN.replace(b",", b" ,\n\t").replace(b":", b" :\r"),
        PLAIN.replace(b'"ratio":2,', b""),
        *(
            with_value("level", each)
            for each in ("0", "-0.0", "1e5", "1E+5", "0.1e-400", "3.0000000000000000001", "-12")
        ),
        *(with_value("text", each) for each in ('""', r'"\"\\\/\b\f\n\r\t\u0041"', '"\N{SNOWMAN}"')),
        *(with_value("count", each) for each in ("0", "-7", "999999999999999999")),
        *(with_value("other", each) for each in ("null", "[]", "{}", '[1,"a",true,{"b":[]}]', "1e9")),
    ],
)
def test_plain_messages_are_read(value: bytes) -> None:
    came = read(value)
    assert came is not None
    assert repr(came) == repr(expect(value))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        PLAIN.replace(b'"update"', b'"snapshot"'),
        PLAIN.replace(b'"number":7', b'"number":7,"number":7'),
        PLAIN.replace(b'"number":7,', b""),
        PLAIN.replace(b"\xe2\x98\x83", b"\xe2\x98"),
        PLAIN + b"{}",
        PLAIN.replace(b'"other":[{"a":null}]', b'"other":' + b"[" * 100_000 + b"]" * 100_000),
        *(with_value("level", each) for each in ("null", "-0", "1e400", '"1"', "true", "NaN", "1.", "01", "9" * 16)),
        *(with_value("text", each) for each in (r'"\ud83d\ude00"', '"\n"', "1", r'"\q"', '"')),
        *(with_value("count", each) for each in ("1.0", "1e3", "9" * 19, "-0", "true")),
    ],
)
def test_what_might_be_read_in_two_ways_is_not_read(value: bytes) -> None:
    assert read(value) is None
