"""Makes docs/reference.md: every public name, from its docstring, and the column types of rows.

.venv/bin/python tools/reference.py > docs/reference.md
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Literal

import msgspec

import lockstep
import lockstep.decoders
import lockstep.delivery
import lockstep.derived
import lockstep.rules
import lockstep.testing
import lockstep.windows
from lockstep import DecimalType, IntegerType, Transform
from lockstep.declare.rules import Rule
from lockstep.model.table_schema import make_provenance_schema, make_row_schema
from lockstep.table.ledger import LedgerRow
from lockstep.table.quarantine import QuarantineRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType


class Side(Enum):
    """An enum of strings."""

    BID = "bid"


class Point(msgspec.Struct):
    """A nested struct."""

    x: int


MODULES = (
    lockstep,
    lockstep.decoders,
    lockstep.rules,
    lockstep.windows,
    lockstep.derived,
    lockstep.delivery,
    lockstep.testing,
)
SECTIONS = ("Attributes:", "Args:", "Returns:", "Raises:", "Yields:")
ENGINE_ONLY = {
    "Delivery": {"choose", "digest_code"},
    "Derived": {"compute_digest"},
    "EnvelopeFields": {"read", "find_updates", "check"},
    "FileSize": {"target_bytes"},
    "Finding": {"at", "without_session"},
    "KafkaTopic": {"address", "joins_batches", "check_rows"},
    "Limits": {"range_messages", "find_batch_messages"},
    "Lookup": {"find_table"},
    "PostgresTable": {"schema", "name", "address", "joins_batches", "check_rows"},
    "References": {"key_column"},
    "SlidingWindows": {"list_spans"},
    "Split": {"of"},
    "Stream": {"replay_key", "shipped"},
    "Topics": {"find_start", "select"},
    "Transform": {"find_stored_type", "replay_columns", "removal_column"},
    "TumblingWindows": {"list_spans"},
    "Webhook": {"address", "transaction_rows", "transaction_seconds"},
}
"""Public members that the engine calls, and no user."""
UNREAD_FIELDS = {
    "DeliveryToken": {
        *("stream", "table_id", "generation", "erasure", "version", "entry", "since", "batch_generation"),
        *("step_batch", "step_generation", "last", "rows", "valid", "code", "undone", "undone_steps"),
    },
    "Verdict": {"before", "after", "freed", "stale", "begins"},
}
"""Fields that the engine reads and writes, and no user."""
OVERRIDDEN = {"envelope", "check_integrity", "on_snapshot", "on_update", "on_timer", "on_end", "deadline"}
"""Methods of `Transform` that a ready fold implements: the text of the fold describes the result."""
DECLARATION_ERROR = "Raises:\n    DeclarationError: Names the field, the value and a valid alternative."
"""The head of the page has it for all classes."""
COLUMNS: dict[str, Any] = {
    "str": str,
    "bytes": bytes,
    "bool": bool,
    "int": int,
    "Annotated[int, IntegerType(32)]": Annotated[int, IntegerType(32)],
    "float": float,
    "Annotated[Decimal, DecimalType(18, 8)]": Annotated[Decimal, DecimalType(18, 8)],
    "datetime, with a zone": datetime,
    "date": date,
    "an Enum of strings, Literal of strings": Side,
    "Literal of integers, an Enum of integers": Literal[1, 2],
    "another Struct": Point,
    "list[X], tuple[X, ...]": list[int],
    "dict[str, X]": dict[str, int],
    "X | None": int | None,
}
HEAD = (
    "# Reference\n\n"
    "Every public name, from its docstring. A wrong declaration raises `DeclarationError`, which names the field, the "
    "value and a valid alternative. A stream module imports from `lockstep` and the modules of its themes: "
    "`lockstep.decoders`, `lockstep.rules`, `lockstep.windows`, `lockstep.derived`, `lockstep.delivery`. Tests "
    "of a stream also import `lockstep.testing`. The command "
    "`.venv/bin/python tools/reference.py > docs/reference.md` generates this page.\n"
)


def page() -> str:
    """The page."""
    parts = [HEAD, "## Column types\n", *_columns()]
    for module in MODULES:
        parts.append(f"## {module.__name__}\n")
        parts.extend(_documentation(module) if module is not lockstep else ())
        parts.extend(_common_arguments() if module is lockstep.rules else ())
        parts.extend(part for name in _names(module) for part in _entry(module, name))
    parts.extend(_side_tables())
    return "\n".join(parts)


def _side_tables() -> Iterator[str]:
    """The columns of the ledger and the quarantine."""
    yield "## Side tables\n\nA column without a type is `int64` and not null.\n"
    for name, row in (("Ledger", LedgerRow), ("Quarantine", QuarantineRow)):
        first, _, rest = (inspect.getdoc(row) or "").partition("Attributes:\n")
        meanings = dict(item.removeprefix("- ").split(": ", 1) for item in _items(rest))
        yield f"### {name}\n\n{' '.join(first.split())}\n"
        for each in make_row_schema(row):
            null = ", nullable" if each.nullable else ""
            arrow = str(each.type).replace("<element: ", "<")
            kind = "" if f"{arrow}{null}" == "int64" else f" (`{arrow}`{null})"
            yield f"- `{each.name}`{kind}: {meanings[f'`{each.name}`']}"
        yield ""


def _common_arguments() -> Iterator[str]:
    """The arguments of every rule, which the entries leave out."""
    _, _, attributes = (inspect.getdoc(Rule) or "").partition("Attributes:\n")
    yield "Every rule also takes, by keyword:\n"
    yield "\n".join(_with_types(_items(attributes), _parameters(Rule))) + "\n"


def _names(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if name != "__version__"]


def _columns() -> Iterator[str]:
    yield "Each field of a row type is a column. A type without `| None` is not null; nested values may be null."
    yield "\n| Python type of the field | Arrow type | Delta and Spark |\n|---|---|---|"
    for shown, annotation in COLUMNS.items():
        column = make_row_schema(msgspec.defstruct("Row", [("value", annotation)])).field("value")
        null = ", nullable" if column.nullable else ""
        yield f"| `{_cell(shown)}` | `{column.type}`{null} | `{_delta(column.type)}` |"
    yield "\nlockstep adds these columns and `commit_hour`, the partition column of the table:"
    yield "\n| column | Arrow type |\n|---|---|"
    yield from (
        f"| `{each.name}` | `{each.type}`{', nullable' if each.nullable else ''} |" for each in make_provenance_schema()
    )
    yield ""


def _delta(arrow: object) -> str:
    """What Delta and Spark call an Arrow type."""
    import pyarrow as pa
    from deltalake import Schema

    declared = Schema.from_arrow(pa.schema([pa.field("value", arrow)]))
    kind = msgspec.json.decode(declared.to_json())["fields"][0]["type"]
    return kind if isinstance(kind, str) else _nested(kind)


def _nested(kind: dict[str, Any]) -> str:
    if kind["type"] == "array":
        return f"array<{kind['elementType']}>"
    if kind["type"] == "map":
        return f"map<{kind['keyType']}, {kind['valueType']}>"
    return f"struct<{', '.join(each['name'] + ': ' + each['type'] for each in kind['fields'])}>"


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    public = getattr(module, name)
    yield f"### {name}\n"
    if inspect.isclass(public) and issubclass(public, Enum):
        yield from _documentation(public)
        yield from _members(public)
        return
    if inspect.isclass(public):
        yield from _documentation(public, _parameters(public))
    elif callable(public):
        yield f"```python\n{name}{_signature(public)}\n```\n"
        yield from _documentation(public)
    else:
        yield f"{_constant(public, name)}\n"
    if inspect.isclass(public):
        for attribute in _properties(public):
            yield f"**`{name}.{attribute.fget.__name__}: {_raw(attribute.fget.__annotations__['return'])}`**\n"
            yield from _documentation(attribute)
        for method in _methods(public):
            yield f"**`{name}.{method.__name__}{_signature(method)}`**\n"
            yield from _documentation(method)


def _constant(value: object, name: str) -> str:
    """The docstring below the assignment of a constant."""
    source = sys.modules[type(value).__module__]
    body = ast.parse(inspect.getsource(source)).body
    return _texts_below(body).get(name, f"A value of `{type(value).__name__}`.")


def _parameters(kind: Any) -> list[inspect.Parameter]:
    """The parameters of a class, without those of every rule and those that no user reads."""
    common = inspect.signature(Rule).parameters if kind is not Rule and issubclass(kind, Rule) else {}
    hidden = {*common, *UNREAD_FIELDS.get(kind.__name__, ())}
    return [each for each in inspect.signature(kind).parameters.values() if each.name not in hidden]


def _signature(of: Any) -> str:
    signature = inspect.signature(of)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    shown = [each.replace(annotation=_raw(each.annotation)) for each in given]
    text = str(signature.replace(parameters=shown, return_annotation=_raw(signature.return_annotation)))
    return _shorten(text).replace(" -> None", "")


def _shorten(text: str) -> str:
    text = re.sub(r"<(\w+\.\w+): [^<>]*>", r"\1", text)  # a member of an enum
    text = re.sub(r"<[^<>]*>", "...", text)  # a default that is made anew each time
    text = re.sub(r"datetime\.timedelta\((?:seconds=)?(\d+)\)", _show_duration, text)
    text = text.replace("datetime.timedelta(", "timedelta(")
    return re.sub(r"\b(?:lockstep(?:\.\w+)+|typing|collections\.abc)\.", "", text)


def _show_duration(found: re.Match[str]) -> str:
    """A duration in its largest whole unit, as people write it."""
    seconds = int(found[1])
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds and seconds % size == 0:
            return f"timedelta({unit}={seconds // size})"
    return f"timedelta({seconds})" if not seconds else f"timedelta(seconds={seconds})"


class _Raw(str):
    """An annotation that is written as it stands in the source, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _raw(annotation: object) -> object:
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return _Raw(text) if isinstance(text, str) else text


def _properties(kind: type) -> Iterator[Any]:
    """The values that a user reads besides the fields."""
    for member in _described(kind):
        if isinstance(member, property):
            yield member


def _methods(kind: type) -> Iterator[Any]:
    """The methods that a user calls or overrides."""
    for member in _described(kind):
        if inspect.isfunction(member) or inspect.ismethod(member):
            yield member


def _described(kind: type) -> Iterator[Any]:
    """Public members of a class; those of gates are the engine's."""
    if kind.__module__.startswith("lockstep.integrity"):
        return
    hidden = ENGINE_ONLY.get(kind.__name__, set())
    overrides = OVERRIDDEN if issubclass(kind, Transform) and kind is not Transform else set()
    hidden = hidden | overrides | (ENGINE_ONLY["Transform"] if overrides else set())
    for name, declared in vars(kind).items():
        member = getattr(kind, name) if isinstance(declared, classmethod) else declared
        text = getattr(member, "__doc__", None) or "See `"
        if not name.startswith("_") and name not in hidden and not text.startswith("See `"):
            yield member


def _members(kind: type[Enum]) -> Iterator[str]:
    """Each member, with the docstring below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    meanings = _texts_below(body.body if isinstance(body, ast.ClassDef) else [])
    if not meanings:
        yield f"Members: {', '.join(f'`{member.name}`' for member in kind)}.\n"
        return
    for member in kind:
        meaning = f": {meanings[member.name]}" if member.name in meanings else ""
        yield f"- `{kind.__name__}.{member.name}`{meaning}"
    yield ""


def _texts_below(statements: Iterable[ast.stmt]) -> dict[str, str]:
    """The docstring below the assignment of each name, in one line."""
    return {
        target.id: " ".join(str(after.value.value).split())
        for before, after in pairwise(statements)
        if isinstance(before, ast.Assign | ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        for target in (before.targets if isinstance(before, ast.Assign) else [before.target])
        if isinstance(target, ast.Name)
    }


def _documentation(of: object, parameters: Sequence[inspect.Parameter] = ()) -> Iterator[str]:
    """A docstring as Markdown: one line a paragraph, sections as lists; parameters have their types and defaults."""
    section = ""
    text = (inspect.getdoc(of) or "").replace(DECLARATION_ERROR, "")
    blocks = list(_blocks(text.strip()))
    if parameters and "Attributes:" not in blocks:
        blocks += ["Attributes:", ""]
    for block in blocks:
        if block in SECTIONS:
            section = block
            label = _label(parameters) if block == "Attributes:" else block
            if label:
                yield f"{label}\n"
        elif section and (block.startswith("    ") or not block):
            items = _without_unread(of, _items(block))
            yield "\n".join(_with_types(items, parameters) if section == "Attributes:" else items) + "\n"
        elif block.startswith("    "):
            yield f"```text\n{textwrap.dedent(block)}\n```\n"
        elif block.startswith("|"):  # a table
            yield f"{block}\n"
        else:
            yield " ".join(block.split()) + "\n"


def _without_unread(of: object, items: Iterable[str]) -> list[str]:
    unread = UNREAD_FIELDS.get(getattr(of, "__name__", ""), set())
    return [item for item in items if item.partition("`")[2].partition("`")[0] not in unread]


def _label(parameters: Sequence[inspect.Parameter]) -> str:
    """The head of a list of attributes that a call passes by keyword, with those that it may pass by position."""
    by_position = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(by_position) == len(parameters):
        return ""
    names = ", ".join(f"`{name}`" for name in by_position)
    return f"By keyword{f' except {names}' if names else ''}:"


def _with_types(items: Iterable[str], parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """The items with the types and defaults of parameters, in the order of the parameters; other items first."""
    texts = dict(re.findall(r"^- `(\w+)`(.*)$", "\n".join(items), re.MULTILINE))
    names = {each.name for each in parameters}
    yield from (f"- `{name}`{text}" for name, text in texts.items() if name not in names)
    for each in parameters:
        shown = _shorten(str(each.replace(annotation=_raw(each.annotation), kind=inspect.Parameter.KEYWORD_ONLY)))
        yield f"- `{shown}`{texts.get(each.name, '')}"


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs; the name of a section stands alone."""
    for paragraph in re.split(r"\n\s*\n", text):
        first, _, rest = paragraph.partition("\n")
        if first in SECTIONS:
            yield first
            yield rest
        elif paragraph:
            yield paragraph


def _items(block: str) -> Iterable[str]:
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith("        ") and lines:
            lines[-1] += " " + line.strip()
        else:
            lines.append("- " + re.sub(r"^(\w+): ", r"`\1`: ", line.strip()))
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
