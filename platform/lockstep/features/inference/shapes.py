"""Shapes of JSON values: the kinds of value that were seen at each place of some messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

DEPTH_MAX = 10
"""Deeper parts of a message get no separate types."""
FIELDS_MAX = 200
"""An object with more different names is a dict."""
POSITIONS_MAX = 8
"""Lists that are longer have elements of one shape."""
INT64 = range(-(2**63), 2**63)

_DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,19})(?:\.\d{1,18})?", re.ASCII)
_TIME = re.compile(
    r"(?!0000)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
    r"(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d)",
    re.ASCII,
)
_LATE_DAY = re.compile(r"\d{4}-\d\d-(?:29|30|31)")


@dataclass
class Texts:
    """Texts at one place.

    Attributes:
        count: Number of texts.
        are_decimals: Whether each is a decimal number that a column `decimal(38, 18)` takes unrounded.
        has_point: Whether one of them has a decimal point.
        are_times: Whether each is a time with a zone, in RFC 3339, of at most six decimals.
    """

    count: int = 0
    are_decimals: bool = True
    has_point: bool = False
    are_times: bool = True

    def add(self, text: str) -> None:
        """Take a text."""
        self.count += 1
        self.are_decimals = self.are_decimals and _DECIMAL.fullmatch(text) is not None
        self.has_point = self.has_point or "." in text
        self.are_times = self.are_times and is_time(text)


def is_time(text: str) -> bool:
    """Whether a text is a time with a zone; leap seconds and months of other lengths are left to the calendar."""
    if _TIME.fullmatch(text) is not None:
        return text[:4] not in {"0001", "9999"}  # a zone could move it out of the calendar
    if _LATE_DAY.match(text) is None:
        return False
    day = int(text[8:10])
    last = 31 if text[5:7] in {"01", "03", "05", "07", "08", "10", "12"} else 30
    return day <= last and text[5:7] != "02" and _TIME.fullmatch(f"{text[:8]}28{text[10:]}") is not None


@dataclass
class Shape:
    """All values at one place of some messages, by kind.

    Attributes:
        count: Number of values, null included.
        nulls: Number of nulls.
        booleans: Number of true and false.
        integers: Number of whole numbers.
        is_int64: Whether each whole number is one of 64 bits.
        floats: Number of other numbers.
        texts: Texts.
        objects: Number of objects.
        fields: Shapes of their values by name.
        lists: Number of lists.
        lengths: Lengths of lists, at most `POSITIONS_MAX` + 1.
        positions: Shapes of elements by position, of lists of at most `POSITIONS_MAX`.
        elements: Shape of all elements.
        is_deep: Whether parts below were not examined.
    """

    count: int = 0
    nulls: int = 0
    booleans: int = 0
    integers: int = 0
    is_int64: bool = True
    floats: int = 0
    texts: Texts = field(default_factory=Texts)
    objects: int = 0
    fields: dict[str, Shape] = field(default_factory=dict)
    lists: int = 0
    lengths: set[int] = field(default_factory=set)
    positions: list[Shape] = field(default_factory=list)
    elements: Shape | None = None
    is_deep: bool = False

    def add(self, value: object, depth: int = 0) -> None:
        """Take a decoded JSON value."""
        self.count += 1
        if value is None:
            self.nulls += 1
        elif isinstance(value, bool):
            self.booleans += 1
        elif isinstance(value, int):
            self.integers += 1
            self.is_int64 = self.is_int64 and value in INT64
        elif isinstance(value, float):
            self.floats += 1
        elif isinstance(value, str):
            self.texts.add(value)
        elif isinstance(value, dict):
            self._add_object(value, depth)
        elif isinstance(value, list):
            self._add_list(value, depth)

    def _add_object(self, value: Mapping[str, object], depth: int) -> None:
        self.objects += 1
        if depth >= DEPTH_MAX:
            self.is_deep = True
            return
        for name, part in value.items():
            if name not in self.fields and len(self.fields) > FIELDS_MAX:
                name = _OTHERS  # noqa: PLW2901  # one shape for all further names
            self.fields.setdefault(name, Shape()).add(part, depth + 1)

    def _add_list(self, value: list[object], depth: int) -> None:
        self.lists += 1
        self.lengths.add(min(len(value), POSITIONS_MAX + 1))
        if self.elements is None:
            self.elements = Shape()
        if depth >= DEPTH_MAX:
            self.is_deep = True
            return
        for part in value:
            self.elements.add(part, depth + 1)
        if len(value) > POSITIONS_MAX:
            return
        while len(self.positions) < len(value):
            self.positions.append(Shape())
        for position, part in zip(self.positions, value, strict=False):
            position.add(part, depth + 1)

    def list_kinds(self) -> tuple[str, ...]:
        """The kinds of its values without null; whole numbers are numbers if there are others."""
        number = "float" if self.floats else "int"
        kinds = (
            ("bool", self.booleans),
            (number, self.integers + self.floats),
            ("str", self.texts.count),
            ("object", self.objects),
            ("list", self.lists),
        )
        return tuple(name for name, count in kinds if count)


_OTHERS = "\0others"
"""A name for the fields beyond `FIELDS_MAX`; such an object becomes a dict."""


def merge_shapes(shapes: list[Shape]) -> Shape:
    """One shape of the values of several."""
    merged = Shape()
    for shape in shapes:
        _merge_into(merged, shape)
    return merged


def _merge_into(merged: Shape, shape: Shape) -> None:
    merged.count += shape.count
    merged.nulls += shape.nulls
    merged.booleans += shape.booleans
    merged.integers += shape.integers
    merged.is_int64 = merged.is_int64 and shape.is_int64
    merged.floats += shape.floats
    merged.texts = Texts(
        merged.texts.count + shape.texts.count,
        merged.texts.are_decimals and shape.texts.are_decimals,
        merged.texts.has_point or shape.texts.has_point,
        merged.texts.are_times and shape.texts.are_times,
    )
    merged.objects += shape.objects
    for name, part in shape.fields.items():
        _merge_into(merged.fields.setdefault(name, Shape()), part)
    merged.lists += shape.lists
    merged.lengths |= shape.lengths
    for number, part in enumerate(shape.positions):
        if number == len(merged.positions):
            merged.positions.append(Shape())
        _merge_into(merged.positions[number], part)
    if shape.elements is not None:
        merged.elements = merge_shapes([part for part in (merged.elements, shape.elements) if part is not None])
    merged.is_deep = merged.is_deep or shape.is_deep
