"""Types of messages, made from their shapes: they decode each message that the shapes have seen. Pure."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.features.inference.shapes import FIELDS_MAX, POSITIONS_MAX, Shape, merge_shapes

RECORDS_MAX = 60
"""Messages of more classes are read as dicts."""
DICT_NAMES_MIN = 12
DICT_PRESENCE_MAX = 0.4
"""An object of so many names, each present so rarely, is a dict: its names are data."""
PAIRS_MIN = 3
PAIR_LENGTH_MAX = 4
"""So many lists of one length, up to this length, are tuples."""
RESERVED = {
    *("str", "int", "float", "bool", "list", "dict", "tuple", "object", "property", "Any", "Annotated", "Decimal"),
    *("datetime", "timedelta", "msgspec", "self", "cls"),
}
"""Names that annotations or generated code use."""
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_REFUSED_NAME = re.compile(r'[\\"\x00-\x1f]')
"""A name with one of these cannot be that of a field of a Struct."""
_CLASS_SUFFIX = re.compile(r".*(?:Part|Message|Row)")


@dataclass(frozen=True)
class ValueKind:
    """One kind of value.

    Attributes:
        text: The type of a plain value, as source.
        record: The class, if it is a Struct.
        items: Types of elements: of a list or dict one, of a tuple each.
        container: "", "list", "tuple" or "dict".
        is_large: Whether its whole numbers need more than 64 bits, which no column has.
    """

    text: str = ""
    record: PartType | None = None
    items: tuple[Inferred, ...] = ()
    container: str = ""
    is_large: bool = False

    def source(self) -> str:
        """The type as source."""
        if self.record is not None:
            return self.record.name
        if self.container == "dict":
            return f"dict[str, {self.items[0].source()}]"
        if self.container:
            return f"{self.container}[{', '.join(item.source() for item in self.items)}]"
        return self.text


@dataclass(frozen=True)
class Inferred:
    """The type of a place.

    Attributes:
        kinds: The kinds of its values; none for values of any type.
        nullable: Whether it may be null, or absent.
    """

    kinds: tuple[ValueKind, ...]
    nullable: bool

    def source(self) -> str:
        """The type as source."""
        if not self.kinds:
            return "Any"
        sources = [kind.source() for kind in self.kinds]
        if self.nullable:
            sources.append("None")
        return " | ".join(sources)

    @property
    def only(self) -> ValueKind | None:
        """Its kind, if it has only one."""
        return self.kinds[0] if len(self.kinds) == 1 else None


@dataclass(frozen=True)
class FieldType:
    """A field of a Struct.

    Attributes:
        wire: Its name in JSON; of a list the position as text.
        name: Its name in Python.
        kind: Its type; nullable if it may be absent.
        is_optional: Whether it may be absent.
    """

    wire: str
    name: str
    kind: Inferred
    is_optional: bool


@dataclass(frozen=True)
class PartType:
    """A Struct.

    Attributes:
        name: Its class.
        place: Its place in a message, for the docstring.
        fields: Its fields.
        is_list: Whether it is a list in JSON.
        tag_field: Name of the field that tells messages apart; empty without one.
        tag: Its value there.
    """

    name: str
    place: str
    fields: tuple[FieldType, ...]
    is_list: bool = False
    tag_field: str = ""
    tag: str | int = ""

    def find_field(self, wire: str | int) -> FieldType | None:
        """The field of a name in JSON, or of a position."""
        return next((field for field in self.fields if field.wire == str(wire)), None)


class TypeBuilder:
    """Makes types, each class with a name that no other has.

    Attributes:
        records: All classes, each after those that it needs.
    """

    def __init__(self) -> None:
        self.records: list[PartType] = []
        self._names: set[str] = set()

    def build_message(self, shape: Shape, name: str = "Message") -> Inferred:
        """The type of whole messages."""
        return self._infer(shape, ("message",), name)

    def build_tagged(self, shapes: Sequence[tuple[str | int, Shape]], tag_field: str) -> Inferred:
        """The union of messages that a field tells apart."""
        members: list[ValueKind] = []
        for tag, shape in shapes:
            name = self._name_class(f"{to_camel(str(tag))}Message")
            fields = self._make_fields(shape, (str(tag),), without=tag_field)
            record = PartType(name, show_text(f"{tag_field} {tag}"), fields, tag_field=tag_field, tag=tag)
            self.records.append(record)
            members.append(ValueKind(record=record))
        return Inferred(tuple(members), nullable=False)

    def _infer(self, shape: Shape, place: tuple[str, ...], name: str = "") -> Inferred:
        kinds: list[ValueKind] = []
        for kind in shape.list_kinds():
            if kind == "object":
                kinds.append(self._infer_object(shape, place, name))
            elif kind == "list":
                # msgspec takes one Struct in a union without tags, also of those that are lists in JSON.
                kinds.append(self._infer_list(shape, place, may_be_record=not shape.objects))
            else:
                text = _name_text(shape, place[-1]) if kind == "str" else kind
                kinds.append(ValueKind(text, is_large=kind == "int" and not shape.is_int64))
        return Inferred(tuple(kinds), shape.nulls > 0)

    def _infer_object(self, shape: Shape, place: tuple[str, ...], name: str) -> ValueKind:
        # Recursive types and huge messages would make classes without end.
        if shape.is_deep or not shape.fields or len(self.records) >= RECORDS_MAX:
            return ValueKind(container="dict", items=(Inferred((), nullable=False),))
        if is_dict(shape):
            values = merge_shapes(list(shape.fields.values()))
            return ValueKind(container="dict", items=(self._infer(values, (*place, ITEM)),))
        class_name = self._name_class(name or _name_part(place))
        fields = self._make_fields(shape, place)
        record = PartType(class_name, show_text(".".join(place)), fields)
        self.records.append(record)
        return ValueKind(record=record)

    def _make_fields(self, shape: Shape, place: tuple[str, ...], without: str = "") -> tuple[FieldType, ...]:
        names: set[str] = set()
        fields: list[FieldType] = []
        for wire, part in shape.fields.items():
            if wire == without:
                continue
            inferred = self._infer(part, (*place, wire))
            # Absent in some objects, which is not the same as null.
            is_optional = part.count < shape.objects
            inferred = Inferred(inferred.kinds, inferred.nullable or is_optional)
            fields.append(FieldType(wire, find_free_name(to_field_name(wire), names), inferred, is_optional))
        return tuple(fields)

    def _infer_list(self, shape: Shape, place: tuple[str, ...], *, may_be_record: bool) -> ValueKind:
        elements = shape.elements or Shape()
        if shape.is_deep or not elements.count:
            return ValueKind(container="list", items=(Inferred((), nullable=False),))
        lengths = shape.lengths
        is_short = max(lengths) <= POSITIONS_MAX
        if len(lengths) == 1 and shape.lists >= PAIRS_MIN and 1 < max(lengths) <= PAIR_LENGTH_MAX:
            items = tuple(self._infer(item, (*place, f"{ITEM} {n}")) for n, item in enumerate(shape.positions))
            return ValueKind(container="tuple", items=items)
        kinds = elements.list_kinds()
        if may_be_record and is_short and min(lengths) > 0 and len(kinds) > 1 and len(self.records) < RECORDS_MAX:
            return ValueKind(record=self._make_list_record(shape, place))
        return ValueKind(container="list", items=(self._infer(elements, (*place, ITEM)),))

    def _make_list_record(self, shape: Shape, place: tuple[str, ...]) -> PartType:
        """A class of a list whose positions have meanings."""
        wanted = "Message" if place == ("message",) else _name_part(place)
        name = self._name_class(wanted)
        shortest = min(shape.lengths)
        fields: list[FieldType] = []
        for number, position in enumerate(shape.positions):
            inferred = self._infer(position, (*place, f"{ITEM} {number}"))
            is_optional = number >= shortest
            inferred = Inferred(inferred.kinds, inferred.nullable or is_optional)
            fields.append(FieldType(str(number), f"item_{number}", inferred, is_optional))
        record = PartType(name, show_text(".".join(place)), tuple(fields), is_list=True)
        self.records.append(record)
        return record

    def _name_class(self, wanted: str) -> str:
        return find_free_name(wanted, self._names)


def is_dict(shape: Shape) -> bool:
    """Whether the names of an object are data."""
    names = len(shape.fields)
    if names > FIELDS_MAX or any(_REFUSED_NAME.search(name) for name in shape.fields):
        return True
    values = sum(part.count for part in shape.fields.values())
    return names >= DICT_NAMES_MIN and values < DICT_PRESENCE_MAX * names * shape.objects


def find_tag(shape: Shape, values: Sequence[object]) -> str:
    """The field that tells messages of several types apart; empty if there is none.

    Each message has it, as a text or whole number of few values, and messages of one value have fields that those of
    others lack.

    Args:
        shape: The shape of all messages.
        values: The messages.
    """
    if shape.list_kinds() != ("object",) or is_dict(shape):
        return ""
    for name, part in shape.fields.items():
        is_everywhere = part.count == shape.objects and not part.nulls
        if is_everywhere and part.is_int64 and part.list_kinds() in {("str",), ("int",)} and _tells_apart(name, values):
            return name
    return ""


def _tells_apart(name: str, values: Sequence[object]) -> bool:
    """Whether a field has few values, and messages of each have their own fields."""
    groups: dict[object, set[str]] = {}
    for value in values:
        if isinstance(value, dict):
            groups.setdefault(value[name], set()).update(value)
        if len(groups) > TAGS_MAX:
            return False
    return len(groups) > 1 and len({frozenset(names) for names in groups.values()}) > 1


TAGS_MAX = 16
"""Most types of messages."""


_IDENTITY = re.compile(r"(?:.*_)?(?:id|key|version|name)|.*(?:Id|ID|Key|Version)")


def _name_text(shape: Shape, name: str) -> str:
    """The type of texts: a decimal, a time, or text; the name of an id speaks against a number."""
    if shape.texts.are_decimals and shape.texts.has_point and _IDENTITY.fullmatch(name) is None:
        return "Decimal"
    return "datetime" if shape.texts.are_times else "str"


ITEM = "item"


def _name_part(place: tuple[str, ...]) -> str:
    """The name of a class of a part of messages, by the nearest field that has a name."""
    nearest = next((step for step in reversed(place) if not step.startswith(ITEM)), "message")
    return f"{to_camel(nearest)}Part"


def to_field_name(wire: str) -> str:
    """A name of a field in Python: that of JSON, if it can be used."""
    if _is_usable(wire):
        return wire
    words = re.sub(r"[^A-Za-z0-9]+", "_", wire).strip("_")[:40].rstrip("_")
    name = words
    if not words[:1].isalpha():
        name = f"field_{words}".rstrip("_")
    return name if _is_usable(name) else f"{name}_"


def _is_usable(name: str) -> bool:
    fits = _PLAIN_NAME.fullmatch(name) is not None and len(name) <= 60  # noqa: PLR2004  # a line of code
    return fits and not (keyword.iskeyword(name) or name in RESERVED or _CLASS_SUFFIX.fullmatch(name))


def to_camel(text: str) -> str:
    """Words of a text as the name of a class."""
    words = re.findall(r"[A-Za-z0-9]+", text)[:6]
    name = "".join(word[:1].upper() + word[1:24] for word in words)
    return name if name[:1].isalpha() else f"Type{name}"


def find_free_name(wanted: str, taken: set[str]) -> str:
    """A name that is not taken; it is taken then."""
    name = wanted
    number = 2
    while name in taken:
        name = f"{wanted}_{number}"
        number += 1
    taken.add(name)
    return name


def show_text(text: str) -> str:
    """A foreign name inside of a docstring."""
    return re.sub(r"[^A-Za-z0-9_. -]", "?", text)[:60].strip()
