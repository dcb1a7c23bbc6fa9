"""If a docstring lists numbered steps, the body has comments with the same numbers."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from itertools import chain
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

STEP = re.compile(r"^(\d+)\. ", re.MULTILINE)
MARK = re.compile(r"# (\d+(?:(?:, | to )\d+)*)(?:[,:] \D.*)?$")
"""A comment that starts with numbers: `# 1`, `# 2, 3`, `# 2 to 4`, `# 3: without Kafka`."""


def marked_lines(source: str) -> dict[int, set[int]]:
    """Return the steps that each line marks."""
    comments = (
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    )
    found = ((token.start[0], MARK.match(token.string)) for token in comments)
    return {line: read_mark(match[1]) for line, match in found if match is not None}


def read_mark(text: str) -> set[int]:
    first, *others = (int(number) for number in re.findall(r"\d+", text))
    return set(range(first, others[0] + 1)) if " to " in text else {first, *others}


def called_names(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function may call: functions, and methods by their last name."""
    nodes = list(ast.walk(function))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    return plain | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def steps_of(function: ast.FunctionDef) -> list[int]:
    return [int(number) for number in STEP.findall(ast.get_docstring(function) or "")]


def marks_of(function: ast.FunctionDef, marked: Mapping[int, set[int]]) -> set[int]:
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return set(chain.from_iterable(marked.get(line, ()) for line in lines))


def unmarked_steps(source: str) -> Iterator[str]:
    """Yield functions with steps that are marked neither in their body nor in called functions without steps."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    marked = marked_lines(source)
    for function in functions:
        steps = set(steps_of(function))
        called = called_names(function)
        helpers = [each for each in functions if each.name in called and not steps_of(each)]
        missing = steps.difference(*(marks_of(each, marked) for each in (function, *helpers)))
        if missing:
            yield f"{function.name}: {sorted(missing)}"


def test_the_steps_of_a_docstring_are_numbered_in_the_body(root: Path) -> None:
    folder = root / "platform" / "lockstep"
    found = {
        f"{path.relative_to(folder)}: {each}"
        for path in folder.rglob("*.py")
        for each in unmarked_steps(path.read_text())
    }
    assert found == set()


LISTED = '''
def work():
    """Work.

    1. Begin.
    2. Go on.
    3. End.
    """
'''


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("    begin()  # 1\n    # 2\n    go_on()\n    end()  # 3\n", []),
        ("    begin()  # 1 to 3\n", []),
        ("    begin()  # 1, first of all\n    # 2: the rest\n    go_on()  # 3\n", []),
        ("    begin()  # 1, 3\n", ["work: [2]"]),
        ("    begin()  # 1 of many, 2 to 3 of some\n", ["work: [1, 2, 3]"]),
        ("    other()  # 1\n\n\ndef other():\n    go_on()  # 2\n    end()  # 3\n", []),
        ("    begin()  # 1\n\n\ndef never_called():\n    go_on()  # 2, 3\n", ["work: [2, 3]"]),
    ],
)
def test_a_step_counts_as_marked_only_by_its_number(body: str, missing: list[str]) -> None:
    assert list(unmarked_steps(LISTED + body)) == missing
