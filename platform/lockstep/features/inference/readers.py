"""Source of functions that read one place of a message, and of the rows of messages. Pure."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

from lockstep.features.inference.evidence import Path, Step
from lockstep.features.inference.message_types import RESERVED, Inferred, PartType, ValueKind, find_free_name

COLUMNS_MAX = 150
"""Messages with more plain values become one column of JSON."""
FLAT_DEPTH_MAX = 3
"""Objects inside of objects, so deep, become separate columns."""
_COLUMN_TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "datetime": "datetime",
    "Decimal": "Annotated[Decimal, DECIMAL]",
}


def show_path(path: Path) -> str:
    """A place of a message, for people."""
    return re.sub(r"[^A-Za-z0-9_. -]", "?", ".".join(map(str, path)))[:60].strip()


@dataclass(frozen=True)
class _Part:
    """A step into one kind of value: the class that has the part, the part's expression, and its type."""

    owner: str
    expression: str
    kind: Inferred


def _step_into(kind: ValueKind, variable: str, step: Step) -> _Part | None:
    if kind.record is not None:
        part_field = kind.record.find_field(step)
        if part_field is None:
            return None
        return _Part(kind.record.name, f"{variable}.{part_field.name}", part_field.kind)
    if kind.container == "list" and step == 0:
        return _Part("list", f"{variable}[0]", kind.items[0])
    if kind.container == "tuple" and isinstance(step, int) and step < len(kind.items):
        return _Part("tuple", f"{variable}[{step}]", kind.items[step])
    return None


def _list_parts(here: Inferred, variable: str, step: Step) -> list[_Part]:
    return [part for kind in here.kinds if (part := _step_into(kind, variable, step)) is not None]


def _join_types(parts: list[_Part]) -> Inferred:
    kinds: dict[str, ValueKind] = {}
    for part in parts:
        kinds |= {kind.source(): kind for kind in part.kind.kinds}
    if any(not part.kind.kinds for part in parts):
        return Inferred((), nullable=True)
    return Inferred(tuple(kinds.values()), any(part.kind.nullable for part in parts))


def find_type(root: Inferred, path: Path) -> Inferred | None:
    """The type of a place; None if the types of messages do not lead there."""
    here = root
    for step in path:
        parts = _list_parts(here, "", step)
        if not parts:
            return None
        here = _join_types(parts)
    return here


def render_reader(name: str, message: str, root: Inferred, path: Path, result: str) -> list[str]:
    """A function that reads a place; it returns None for a message without a value of this class there.

    Args:
        name: Its name.
        message: The type of messages, as source.
        root: The type of messages; it leads to the place.
        path: The place.
        result: The class of the result: "int", "str", "bool", or "object" for a value of any class.
    """
    returned = "object" if result == "object" else f"{result} | None"
    lines = [f"def {name}(message: {message}) -> {returned}:", f'    """Read `{show_path(path)}` of a message."""']
    here = root
    variable = "message"
    for number, step in enumerate(path):
        parts = _list_parts(here, variable, step)
        # Values of another kind, or null, have no such part.
        if here.nullable or len(parts) < len(here.kinds):
            owners = sorted({part.owner for part in parts})
            shown = owners[0] if len(owners) == 1 else f"({', '.join(owners)})"
            lines += [f"    if not isinstance({variable}, {shown}):", "        return None"]
        # A list may be empty, a tuple has its length by its type.
        if any(part.owner == "list" for part in parts):
            lines += [f"    if not {variable}:", "        return None"]
        expression = parts[0].expression
        here = _join_types(parts)
        if number < len(path) - 1:
            variable = f"part_{number}"
            lines.append(f"    {variable} = {expression}")
        else:
            lines += _render_result(expression, here, result)
    return lines


def _render_result(expression: str, here: Inferred, result: str) -> list[str]:
    sources = {kind.source() for kind in here.kinds}
    if result == "object" or sources == {result}:
        return [f"    return {expression}"]
    lines = [f"    found = {expression}"]
    if result != "str":
        return [*lines, f"    return found if isinstance(found, {result}) else None"]
    if here.nullable:
        return [*lines, "    return None if found is None else str(found)"]
    return [*lines, "    return str(found)"]


@dataclass
class RowColumns:
    """Columns of the rows, with the expression of each by class of messages.

    Attributes:
        types: Type of each column by its name, as source; all are nullable.
        documents: Names of the columns that hold JSON.
        rows: For each class of messages its lines before the row, and the expressions by column.
    """

    types: dict[str, str] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)
    rows: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)
    _names: dict[tuple[str, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {"kind", "message", "commit_hour"})

    def add_message(self, record: PartType) -> None:
        """Add the columns of a class of messages."""
        lines: list[str] = []
        self.rows[record.name] = (lines, self._add(record, "message", (), lines, guard=""))

    def _add(
        self, record: PartType, variable: str, place: tuple[str, ...], lines: list[str], *, guard: str
    ) -> dict[str, str]:
        """The expressions of the columns of a class; each starts with `guard`, if the object may be absent."""
        expressions: dict[str, str] = {}
        for part in record.fields:
            here = (*place, part.name)
            only = part.kind.only
            if only is not None and only.record is not None and len(here) < FLAT_DEPTH_MAX:
                inner = f"part_{len(lines)}"
                lines.append(f"    {inner} = {guard}{variable}.{part.name}")
                may_be_absent = bool(guard) or part.kind.nullable
                inner_guard = f"None if {inner} is None else " if may_be_absent else ""
                expressions.update(self._add(only.record, inner, here, lines, guard=inner_guard))
                continue
            # Without a type it becomes JSON: values of several types, lists, or large numbers.
            kind = ""
            if only is not None and not only.is_large:
                kind = _COLUMN_TYPES.get(only.text, "")
            expressions[self._name_column(here, kind)] = f"{guard}{variable}.{part.name}"
        return expressions

    def _name_column(self, place: tuple[str, ...], kind: str) -> str:
        """The column of a place; JSON, if it has values of several types."""
        name = self._names.get(place)
        if name is None:
            name = find_free_name(to_column_name(place), self._taken)
            self._names[place] = name
            self.types[name] = kind or "str"
            if not kind:
                self.documents.add(name)
        # Two classes of messages have it with different types.
        elif self.types[name] != (kind or "str") or (not kind and name not in self.documents):
            self.types[name] = "str"
            self.documents.add(name)
        return name


def to_column_name(place: tuple[str, ...]) -> str:
    """A name of a column: lower case, words joined by underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", "_".join(place))
    name = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:60].strip("_")
    if not name[:1].isalpha():
        name = f"field_{name}".rstrip("_")
    if keyword.iskeyword(name) or name in RESERVED:
        return f"{name}_value"
    return name
