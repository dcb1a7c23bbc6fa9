"""Names follow conventions: a class name is unique, and a public function starts with a verb."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from lockstep.feature import INSTALLED
from tests.support.syntax import list_nodes, parse_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERBS = """
accept add adopt advance append apply ask audit await begin bind blame build carry catch check choose close
collect commit compact compare compile compress compute copy count create decide decode delete describe digest draw
drop encode end erase escape evolve examine expand explain export feed fetch file finalize find finish forget format
hash hold ignore import interrupt iterate judge keep list load lock look make mark merge migrate move name narrow need
observe open order pack parse pin poll plan play prepare print produce promote prove prune publish query raise read
rebuild record redact refresh refuse register regroup release remember render renew repair repeat replay report request
require reserve reset resolve restore resume retire rewind rewrite rotate rule run send serve set share show sort split
start stop style suggest summarize sync take to translate try unwrap validate verify wait warm widen with
withdraw without write
"""
VERBS = frozenset(_VERBS.split())
PREDICATES = ("is", "has", "may", "was")

# Commands of the command line have their typed name; entry points are called `main`.
COMMANDS = (
    *(f"cli/{name}.py" for name in ("control", "inspect", "install", "messages", "prove", "recover", "tables")),
    *(f"features/{name}/commands.py" for name in INSTALLED),
)
ENTRY = "main"


def public(library: Path, kinds: tuple[type[ast.stmt], ...]) -> Iterator[tuple[str, str]]:
    """Yield module and name of each public definition of these kinds at the top level of a module."""
    for path in sorted(library.rglob("*.py")):
        for node in parse_file(path).body:
            if isinstance(node, kinds) and isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                yield str(path.relative_to(library)), node.name


@pytest.fixture
def library(root: Path) -> Path:
    return root / "platform" / "lockstep"


def test_no_public_class_has_the_name_of_another(library: Path) -> None:
    homes = defaultdict(list)
    for module, name in public(library, (ast.ClassDef,)):
        homes[name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_predicates_answer_yes_or_no(library: Path) -> None:
    wrong = [
        f"{path.relative_to(library)}:{node.lineno} {node.name}"
        for path in sorted(library.rglob("*.py"))
        for node in list_nodes(path)
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").split("_")[0] in PREDICATES
        if node.returns is None
        or not {"bool", "TypeGuard", "TypeIs"} & set(re.findall(r"\w+", ast.unparse(node.returns)))
    ]
    assert wrong == []


def test_public_functions_begin_with_a_verb_or_are_predicates(library: Path) -> None:
    wrong = [
        f"{module}: {name}"
        for module, name in public(library, (ast.FunctionDef,))
        if module not in COMMANDS and name != ENTRY and name.split("_")[0] not in VERBS | set(PREDICATES)
    ]
    assert wrong == []
