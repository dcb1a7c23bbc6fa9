"""Streams that commands write into a project: their names, the example, and their entry in definitions.py."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Collection
from pathlib import Path

from lockstep.declare.discovery import PACKAGE
from lockstep.declare.naming import NAME, NO_NAME
from lockstep.errors import LockstepError
from lockstep.operations.project import DEFINITIONS, FILES

_SCAFFOLD = "dg scaffold defs lockstep.Stream plant_readings"
_EXAMPLE = re.compile(r"\breadings\b")
_EXAMPLE_NAMES = frozenset(
    {"annotations", "message", "messages", "msgspec", "number", "previous", "ran", "record", "run", "state", "value"}
)
"""Names that the example and its test use, in addition to those of Python."""


class NewStreamRefused(LockstepError):
    """A stream cannot be written here under this name.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str, problem: str, next_step: str) -> None:
        super().__init__(f"stream {name!r} cannot be written: {problem}", next_step=next_step)
        self.name = name


def refuse_name(name: str, taken: Collection[str], example: str) -> None:
    """Refuse a name for which no file can be written.

    Args:
        name: Name of the stream.
        taken: Names that the new files use.
        example: A command with a name that can be used.

    Raises:
        NewStreamRefused: Names the reason.
    """
    if NAME.fullmatch(name) is None:
        raise NewStreamRefused(name, NO_NAME, f"for example: {example}")
    if keyword.iskeyword(name) or name in taken or hasattr(builtins, name):
        raise NewStreamRefused(name, "Python or the new file uses this name", f"add a word: {name}_stream")


def _refuse_example(folder: Path, module: str, test: Path) -> None:
    name = folder.name
    refuse_name(name, _EXAMPLE_NAMES, _SCAFFOLD)
    if module.startswith(f"{PACKAGE}.") and module != f"{PACKAGE}.{name}":
        raise NewStreamRefused(name, f"streams are directly below {PACKAGE}/", f"for example: {_SCAFFOLD}")
    shadowed = folder.with_suffix(".py")  # Python prefers a package to a module of the same name
    for file in (shadowed, test):
        if file.exists():
            raise NewStreamRefused(name, f"{file} exists", "choose another name, or move the file away")


def write_example(folder: Path, module: str, component: str, test: Path) -> None:
    """Write the example of `lockstep init` under another name, as a package with a component of `dg`.

    Args:
        folder: Folder of the package, without files; its name is that of the stream.
        module: Its name as a module.
        component: Type of the component.
        test: File of its test.

    Raises:
        NewStreamRefused: The name cannot be used, or the test or a module of this name exists; the folder is removed
            then.
    """
    name = folder.name
    try:
        _refuse_example(folder, module, test)
    except NewStreamRefused:
        folder.rmdir()
        raise
    test.parent.mkdir(exist_ok=True)
    text = (FILES / "test_readings.py.txt").read_text().replace("assets.readings", module)
    test.write_text(_EXAMPLE.sub(name, text))
    (folder / "__init__.py").write_text(_EXAMPLE.sub(name, (FILES / "readings.py.txt").read_text()))
    (folder / "defs.yaml").write_text(f"type: {component}\n\nattributes:\n  stream: {module}.{name}\n")


def name_in_definitions(root: Path, name: str) -> bool:
    """Add a stream to STREAMS of definitions.py; False if `lockstep init` has not written the file so."""
    file = root / DEFINITIONS
    try:
        after = add_to_definitions(file.read_text(), name)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False
    if after is None:
        return False
    file.write_text(after)
    return True


def add_to_definitions(text: str, name: str) -> str | None:
    """The text of definitions.py with one stream more; None without a plain tuple STREAMS, or with this name in use.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(text)
    streams = list[ast.expr | None]()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "STREAMS":
            streams.append(node.value)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0]
    if len(streams) != 1 or not isinstance(streams[0], ast.Tuple) or not imports or f" {name}\n" in text:
        return None
    value = streams[0]
    lines = text.splitlines(keepends=True)
    if value.lineno != value.end_lineno or value.end_col_offset is None:
        return None
    line = lines[value.lineno - 1]
    items = [ast.get_source_segment(text, each) or "" for each in value.elts]
    shown = f"({', '.join([*items, name])})"
    if not items:  # a tuple of one name
        shown = f"({name},)"
    lines[value.lineno - 1] = line[: value.col_offset] + shown + line[value.end_col_offset :]
    own = [node for node in imports if (node.module or "").startswith(f"{PACKAGE}.")]
    local = [node for node in imports if (node.module or "").split(".")[0] in {"jobs", "lockstep", "sensors"}]
    earlier = [node for node in own if (node.module or "") < f"{PACKAGE}.{name}"]
    line_number = (own or local or imports)[0].lineno - 1
    if earlier:
        line_number = earlier[-1].end_lineno or line_number
    lines.insert(line_number, f"from {PACKAGE}.{name} import {name}\n")
    changed = "".join(lines)
    # A file that Dagster could not load any more is not written.
    ast.parse(changed)
    return changed
