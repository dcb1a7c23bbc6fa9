"""Checks of Protobuf messages that the library lacks: fields that it drops, numbers that it cuts, ranges of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockstep.declare.decoders.base import DecodeCause, Undecodable

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

VARINT, FIXED64, BYTES, START, END, FIXED32 = range(6)
"""Wire types, in the order of their numbers."""
VARINT_BYTES_MAX: Final = 10
_WIRE_TYPES: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), BYTES),
    "group": START,
}


def _is_int32(number: int) -> bool:
    signed = number - 2**64 if number >= 2**63 else number
    return -(2**31) <= signed < 2**31


_FITS: Final[dict[str, Callable[[int], bool]]] = {
    "int32": _is_int32,
    "enum": _is_int32,
    "uint32": lambda number: number < 2**32,
    "sint32": lambda number: number < 2**32,
    "bool": lambda number: number <= 1,
}
"""Whether a varint is a number of its type, which the library would cut."""


class _FieldRule(NamedTuple):
    """The permitted forms of a field.

    Attributes:
        name: Its full name.
        wire_types: Its wire types: of repeated numbers two, because they may be packed.
        packed: The wire type of packed elements; None if they cannot be packed.
        fits: Whether a varint is a number of its type; None if all are.
        message: The rules of its message, if it is one.
    """

    name: str
    wire_types: frozenset[int]
    packed: int | None
    fits: Callable[[int], bool] | None
    message: MessageRules | None


@dataclass
class MessageRules:
    """The rules of a message's fields.

    Attributes:
        is_entry: The message is an entry of a map. The library drops one that has an unknown field.
        fields: The rules by the fields' numbers.
    """

    is_entry: bool
    fields: dict[int, _FieldRule] = field(default_factory=dict)

    @property
    def are_visible(self) -> bool:
        """Whether the library's unknown fields of the message itself tell each violation, those in its maps too."""
        return all(
            rule.fits is None and (rule.message is None or (rule.message.is_entry and rule.message.are_visible))
            for rule in self.fields.values()
        )


def make_rules(descriptor: Descriptor, known: dict[str, MessageRules]) -> MessageRules:
    """The rules of a message and of all messages inside of it.

    Args:
        descriptor: The message.
        known: The rules made so far, by full name.
    """
    if descriptor.full_name not in known:
        rules = known[descriptor.full_name] = MessageRules(descriptor.GetOptions().map_entry)
        for one in descriptor.fields:
            rules.fields[one.number] = _make_rule(one, known)
    return known[descriptor.full_name]


def _make_rule(field: FieldDescriptor, known: dict[str, MessageRules]) -> _FieldRule:
    kind = _name_type(field)
    wire_type = _WIRE_TYPES[kind]
    wire_types = {wire_type}
    packed = None
    if field.is_repeated and wire_type not in {BYTES, START}:  # writers may pack the values into one
        wire_types.add(BYTES)
        packed = wire_type
    message = None
    if field.message_type is not None:
        message = make_rules(field.message_type, known)
    return _FieldRule(field.full_name, frozenset(wire_types), packed, _FITS.get(kind), message)


def _name_type(field: FieldDescriptor) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def check_fields(rules: MessageRules, body: bytes) -> None:
    """Check the fields of a message that the library has parsed.

    Raises:
        Undecodable: A field has another wire type, and would seem absent; or a number has more bits than its
            field, and would be cut.
    """
    _check_range(rules, body, 0, len(body))


def _check_range(rules: MessageRules, body: bytes, at: int, end: int) -> int:
    """Check the fields up to a position, or up to the end of a group; the position after them."""
    while at < end:
        tag, at = _read_varint(body, at)
        number = tag >> 3
        wire_type = tag & 7
        if wire_type == END:
            return at
        rule = rules.fields.get(number)
        if rule is None and rules.is_entry:
            raise Undecodable(DecodeCause.WRONG_TYPE, f"an entry of a map has an unknown field {number}")
        if rule is not None and wire_type not in rule.wire_types:
            problem = f"{rule.name} (field {number}) has another wire type"
            raise Undecodable(DecodeCause.WRONG_TYPE, problem)
        at = _check_value(rule or _UNKNOWN, body, at, wire_type)
    return at


_UNKNOWN: Final = _FieldRule("an unknown field", frozenset(), None, None, None)
_NO_RULES: Final = MessageRules(is_entry=False)
_SIZES: Final = {FIXED64: 8, FIXED32: 4}


def _check_value(rule: _FieldRule, body: bytes, at: int, wire_type: int) -> int:
    """Check a value; the position after it."""
    if wire_type == VARINT:
        number, at = _read_varint(body, at)
        if rule.fits is not None and not rule.fits(number):
            raise Undecodable(DecodeCause.WRONG_TYPE, f"{rule.name} = {number} does not fit its type")
        return at
    if wire_type == START:
        return _check_range(rule.message or _NO_RULES, body, at, len(body))
    if wire_type in _SIZES:
        return at + _SIZES[wire_type]
    size, at = _read_varint(body, at)
    end = at + size
    if rule.packed is not None:
        while at < end:
            at = _check_value(rule, body, at, rule.packed)
    elif rule.message is not None:
        _check_range(rule.message, body, at, end)
    return end


_BITS: Final = 2**64 - 1
"""The library drops the bits above, and so does the encoding's definition."""


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:  # noqa: PLR2004  # the last byte of a varint has no high bit
            break
    return number & _BITS, at


SECONDS_MIN: Final = -62_135_596_800
"""0001-01-01T00:00:00Z."""
SECONDS_MAX: Final = 253_402_300_799
"""9999-12-31T23:59:59Z."""
DURATION_SECONDS_MAX: Final = 315_576_000_000
NANOS_MAX: Final = 999_999_999


def _judge_timestamp(message: Any) -> str | None:
    if SECONDS_MIN <= message.seconds <= SECONDS_MAX and 0 <= message.nanos <= NANOS_MAX:
        return None
    return f"{message.seconds} s and {message.nanos} ns are not a time of the years 1 to 9999"


def _judge_duration(message: Any) -> str | None:
    seconds = message.seconds
    nanos = message.nanos
    if abs(seconds) <= DURATION_SECONDS_MAX and abs(nanos) <= NANOS_MAX and seconds * nanos >= 0:
        return None
    return f"{seconds} s and {nanos} ns are not a duration of 10,000 years at most"


def _judge_any(message: Any) -> str | None:
    if "/" in message.type_url or not (message.type_url or message.value):
        return None
    return f"{message.type_url!r} is not the URL of a type"


def _judge_value(message: Any) -> str | None:
    return None if message.WhichOneof("kind") else "is a value of no kind"


Judge = Callable[[Any], str | None]
"""From a message to its fault."""
_JUDGES: Final[dict[str, Judge]] = {
    "google.protobuf.Timestamp": _judge_timestamp,
    "google.protobuf.Duration": _judge_duration,
    "google.protobuf.Any": _judge_any,
    "google.protobuf.Value": _judge_value,
}
"""By well-known type, what its definition demands and the library does not check."""


@dataclass
class _ValueChecks:
    """The checks of a message and of the messages inside of it.

    Attributes:
        name: Full name of the message.
        judges: The checks of the message itself.
        inside: Its fields with messages, and how they are read.
    """

    name: str
    judges: list[Judge]
    inside: list[tuple[str, ListMessages, _ValueChecks]] = field(default_factory=list)

    def check(self, message: Any) -> None:
        """Check a message.

        Raises:
            Undecodable: One of its values is out of range.
        """
        for judge in self.judges:
            if (problem := judge(message)) is not None:
                raise Undecodable(DecodeCause.MALFORMED, f"{self.name}: {problem}")
        for name, list_messages, checks in self.inside:
            for inner in list_messages(message, name):
                checks.check(inner)


ListMessages = Callable[[Any, str], Iterable[Any]]
"""From a message and the name of a field to the messages in it."""


def find_value_checks(descriptor: Descriptor) -> Callable[[Message], None] | None:
    """The check of a message's values; None if all that the library accepts are right."""
    known: dict[str, _ValueChecks] = {}
    root = _collect(descriptor, known)
    leading = {one.name for one in known.values() if one.judges}
    while more := {one.name for one in known.values() if _leads(one, leading)} - leading:
        leading |= more
    for one in known.values():
        one.inside = [part for part in one.inside if part[2].name in leading]
    return root.check if root.name in leading else None


def _leads(checks: _ValueChecks, leading: set[str]) -> bool:
    return any(inner.name in leading for _, _, inner in checks.inside)


def _collect(descriptor: Descriptor, known: dict[str, _ValueChecks]) -> _ValueChecks:
    """The checks of a message; in `known` also those of all messages inside of it, by full name."""
    name = descriptor.full_name
    if name not in known:
        checks = known[name] = _ValueChecks(name, list(_find_judges(descriptor)))
        for one in descriptor.fields:
            if one.message_type is not None:
                inner = one.message_type
                if _is_map(one):
                    inner = one.message_type.fields_by_name["value"].message_type
                if inner is not None:
                    checks.inside.append((one.name, _find_listing(one), _collect(inner, known)))
    return known[name]


def _find_judges(descriptor: Descriptor) -> Iterator[Judge]:
    if descriptor.full_name in _JUDGES:
        yield _JUDGES[descriptor.full_name]
    texts = [one for one in descriptor.fields if _has_text(one)]
    if texts and not _verifies_text(descriptor):
        yield partial(_judge_texts, texts)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _find_listing(field: FieldDescriptor) -> ListMessages:
    if _is_map(field):
        return lambda message, name: getattr(message, name).values()
    if field.is_repeated:
        return getattr
    return lambda message, name: (getattr(message, name),) if message.HasField(name) else ()


def _has_text(field: FieldDescriptor) -> bool:
    if _is_map(field):
        return any(_name_type(one) == "string" for one in field.message_type.fields)
    return _name_type(field) == "string"


def _verifies_text(descriptor: Descriptor) -> bool:
    """Whether the library refuses text that is not UTF-8; otherwise it returns the bytes instead."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return file.syntax == "proto3"


def _judge_texts(fields: Sequence[FieldDescriptor], message: Any) -> str | None:
    for one in fields:
        try:
            is_text = all(isinstance(part, str) for part in _list_texts(one, getattr(message, one.name)))
        except UnicodeDecodeError:  # of a key
            is_text = False
        if not is_text:
            return f"{one.name} is not UTF-8"
    return None


def _list_texts(field: FieldDescriptor, value: Any) -> Iterable[object]:
    """The texts of a field; bytes instead of each one that is not UTF-8."""
    if not _is_map(field):
        return value if field.is_repeated else (value,)
    keys, values = (_name_type(one) == "string" for one in field.message_type.fields)
    texts = list[object]()
    if keys:
        texts += value.keys()
    if values:
        texts += value.values()
    return texts
