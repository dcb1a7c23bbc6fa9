"""The interface of the command line as text: every command with its options, and every JSON document with its fields.

Scripts read the documents of `--json` by field name. A renamed field of a printed struct breaks scripts, and the golden
text shows the change.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer

from lockstep.cli.__main__ import app

Command = Any
"""A click command; typer ships click without types."""


def list_commands() -> dict[str, Command]:
    """Return every command, keyed by the words that call it."""
    return dict(_walk_commands(typer.main.get_command(app), ""))


def _walk_commands(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    group = getattr(command, "commands", None)
    if group is None:
        yield name, command
        return
    for word in sorted(group):
        yield from _walk_commands(group[word], f"{name} {word}".strip())


def has_json(command: Command) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


def describe_command(name: str, command: Command) -> list[str]:
    """Return the lines of a command: its name, then its parameters in their order."""
    types = get_type_hints(inspect.unwrap(command.callback))
    return [name, *(f"    {_describe_parameter(parameter, types)}" for parameter in command.params)]


def _describe_parameter(parameter: Any, types: Mapping[str, object]) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = parameter.metavar or parameter.name.upper() if is_argument else " ".join(parameter.opts)
    kind = "flag" if getattr(parameter, "is_flag", False) else Documents().describe(types[parameter.name])
    return f"{names}: {kind}{', required' if parameter.required else ''}"


def list_documents(command: Command) -> list[object]:
    """Return the types of the documents that a command prints with `--json`, in the order of its source."""
    function: FunctionType = inspect.unwrap(command.callback)
    module = sys.modules[function.__module__]
    return list(dict.fromkeys(_walk_documents(module, function.__name__)))


def _walk_documents(module: ModuleType, name: str) -> Iterator[object]:
    """Yield the type of each document that a function prints, itself or through functions of its module."""
    functions = _read_functions(module)
    waiting = deque([name])
    reached = {name}
    while waiting:
        current = waiting.popleft()
        for node in ast.walk(functions[current]):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called in functions.keys() - reached:
                reached.add(called)
                waiting.append(called)
            if called in {"print_described", "carry_out"}:
                yield from _types_of_pages(functions[current], node)
            elif (renderer := _find_renderer(node, set(functions))) is not None:
                yield _type_of_first(module, renderer)


def _types_of_pages(function: ast.FunctionDef, call: ast.Call) -> Iterator[object]:
    """Yield the types of the documents that a call prints: the type of a value, or of a plan and its result."""
    returned = _find_returned(function, call.args[0])
    if getattr(call.func, "id", "") == "carry_out":
        yield from get_args(returned)
    else:
        yield returned


def _find_returned(function: ast.FunctionDef, shown: ast.expr) -> object:
    """Return the return type of the operation that a function imports and then calls or passes on."""
    if isinstance(shown, ast.Lambda):
        return _find_returned(function, shown.body)
    if isinstance(shown, ast.Call):
        name = getattr(shown.func, "id", "")
        return _find_returned(function, shown.args[0]) if name == "partial" else _find_type(function, name)
    assert isinstance(shown, ast.Name), ast.unparse(shown)
    assigned = [each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and _assigns(each, shown.id)]
    return _find_returned(function, assigned[-1]) if assigned else _find_type(function, shown.id)


def _assigns(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)


def _find_type(function: ast.FunctionDef, name: str) -> object:
    """Return the return type of an operation that a function imports under a name."""
    for node in ast.walk(function):
        if not isinstance(node, ast.ImportFrom):
            continue
        for each in node.names:
            if name == (each.asname or each.name):
                operation = getattr(importlib.import_module(str(node.module)), each.name)
                names = _type_names(sys.modules[operation.__module__])
                return get_type_hints(operation, localns=names, include_extras=True)["return"]
    raise AssertionError(f"{function.name} does not import {name}")


def _find_renderer(call: ast.Call, functions: set[str]) -> ast.expr | None:
    """Return the second argument of a call that may print JSON, if it is a function."""
    as_json = [keyword.value for keyword in call.keywords if keyword.arg == "as_json"]
    if not as_json or len(call.args) < 2 or (isinstance(as_json[0], ast.Constant) and not as_json[0].value):
        return None
    renderer = call.args[1]
    is_function = isinstance(renderer, ast.Lambda) or (isinstance(renderer, ast.Name) and renderer.id in functions)
    return renderer if is_function else None


def _type_of_first(module: ModuleType, renderer: ast.expr) -> object:
    """Return the type of the document that a renderer receives: a function, or the function that a lambda calls."""
    position = 0
    if isinstance(renderer, ast.Lambda):
        call = renderer.body
        parameter = renderer.args.args[0].arg
        assert isinstance(call, ast.Call), f"{module.__name__}:{renderer.lineno}: name the renderer"
        passed = [isinstance(argument, ast.Name) and argument.id == parameter for argument in call.args]
        assert any(passed), f"{module.__name__}:{renderer.lineno}: name the renderer, with the type of its document"
        position = passed.index(True)
        renderer = call.func
    assert isinstance(renderer, ast.Name)
    function = getattr(module, renderer.id)
    hints = get_type_hints(function, localns=_type_names(sys.modules[function.__module__]), include_extras=True)
    return hints[list(inspect.signature(function).parameters)[position]]


@cache
def _read_functions(module: ModuleType) -> Mapping[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def _type_names(module: ModuleType) -> Mapping[str, Any]:
    """Return the names that a module imports for its types only."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(ast.Module(node.body, [])), names)  # noqa: S102  # the library's own imports
    return names


class Documents:
    """Descriptions of the structs in documents, each struct once."""

    def __init__(self) -> None:
        self.structs: dict[str, list[str]] = {}
        self._known: dict[str, type] = {}
        self._waiting: deque[type] = deque()

    def describe(self, kind: object) -> str:
        """Return the JSON form of a type. A struct is named; `finish` describes its fields."""
        if get_origin(kind) is Annotated:
            return self.describe(get_args(kind)[0])
        if get_origin(kind) in {Union, UnionType}:
            return " | ".join(self.describe(part) for part in get_args(kind))
        if get_origin(kind) is Literal:
            return " | ".join(map(repr, get_args(kind)))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return " | ".join(repr(member.value) for member in kind)
        return self._describe_named(kind)

    def _describe_named(self, kind: object) -> str:
        if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
            self._remember(kind)
            return kind.__name__
        if hasattr(kind, "__value__"):
            return self.describe(kind.__value__)
        return self._describe_plain(kind)

    def _describe_plain(self, kind: Any) -> str:
        origin = get_origin(kind)
        if isinstance(origin, type):
            parts = ", ".join(self.describe(part) for part in get_args(kind) if part is not Ellipsis)
            return f"{'object' if issubclass(origin, Mapping) else 'array'}[{parts}]"
        if isinstance(kind, type) and hasattr(kind, "_fields"):
            hints = _hints_of(kind)
            return f"array[{', '.join(f'{name}: {self.describe(hints[name])}' for name in kind._fields)}]"
        return "null" if kind is NoneType else getattr(kind, "__name__", str(kind))

    def _remember(self, kind: type) -> None:
        if self._known.setdefault(kind.__name__, kind) is not kind:
            raise AssertionError(f"two structs have the name {kind.__name__}")
        if kind.__name__ not in self.structs:
            self.structs[kind.__name__] = []
            self._waiting.append(kind)

    def finish(self) -> None:
        """Describe the fields of every struct that a described type contains."""
        while self._waiting:
            kind = self._waiting.popleft()
            hints = _hints_of(kind)
            lines = [f"    {encoded}: {self.describe(hints[name])}" for name, encoded in _list_fields(kind)]
            self.structs[kind.__name__] = [kind.__name__, *_list_form(kind), *lines]


def _list_form(kind: Any) -> Iterator[str]:
    """Yield a line if a struct is encoded as an array, and a line for its tag."""
    if not issubclass(kind, msgspec.Struct):
        return
    form = kind.__struct_config__
    if form.array_like:
        yield "    (an array)"
    if form.tag is not None:
        yield f"    {form.tag_field}: {form.tag!r}"


def _list_fields(kind: Any) -> list[tuple[str, str]]:
    """Return the fields of a struct, each with its name in JSON."""
    if is_dataclass(kind):
        return [(field.name, field.name) for field in fields(kind)]
    return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


def _hints_of(kind: type) -> dict[str, Any]:
    """Return the field types of a class, including types imported for the type checker only."""
    names: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("lockstep."):
            names.update(_type_names(sys.modules[base.__module__]))
    return get_type_hints(kind, localns=names, include_extras=True)


def describe_interface() -> str:
    """Return the full text: commands, their documents and the structs of the documents."""
    documents = Documents()
    lines = []
    for name, command in list_commands().items():
        lines.extend(describe_command(name, command))
        lines.extend(f"    prints {documents.describe(kind)}" for kind in list_documents(command))
    documents.finish()
    for name in sorted(documents.structs):
        lines.extend(["", *documents.structs[name]])
    return "\n".join([*lines, ""])
