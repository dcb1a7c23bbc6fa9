"""Limits of the repository's layout: places of files, and lengths of functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.syntax import list_nodes, parse_file

if TYPE_CHECKING:
    from pathlib import Path

# Docstrings do not count, so that explanations have no cost.
FUNCTION_LINES_MAX = 40

# Wiring only states which assets run together and when: logic belongs in the library.
WIRING_LINES_MAX = 60


def code_below(files: list[Path], root: Path, *folders: str) -> list[Path]:
    """Return the Python files below some folders, or all of them."""
    named = [root / folder for folder in folders] or [root]
    return [path for path in files if path.suffix == ".py" and any(path.is_relative_to(it) for it in named)]


def longer_than(limit: int, files: list[Path]) -> dict[str, int]:
    counted = {str(path): len(path.read_text().splitlines()) for path in files}
    return {path: lines for path, lines in counted.items() if lines > limit}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def test_platform_holds_one_package_and_nothing_loose(root: Path) -> None:
    """An `__init__.py` here would shadow Python's own `platform` and break pip, pytest and Dagster."""
    found = [path.name for path in (root / "platform").iterdir() if path.name != "__pycache__"]
    assert found == ["lockstep"]


def test_python_still_finds_its_own_platform() -> None:
    import platform

    assert platform.system() == "Linux"


def test_every_package_of_the_library_says_what_it_is_and_only_the_public_ones_export(
    root: Path, tracked: list[Path]
) -> None:
    """`lockstep.storage` may export, too: its importers do not depend on the kind of storage."""
    library = root / "platform" / "lockstep"
    folders = {path.parent for path in code_below(tracked, root, "platform/lockstep")} - {
        *(library, library / "testing", library / "storage"),
    }
    wrong = []
    for source in sorted(folder / "__init__.py" for folder in folders):
        tree = parse_file(source) if source.exists() else ast.Module([], [])
        if ast.get_docstring(tree) is None or len(tree.body) != 1:
            wrong.append(str(source.relative_to(root)))
    assert wrong == []


def test_jobs_and_sensors_only_wire(root: Path, tracked: list[Path]) -> None:
    assert longer_than(WIRING_LINES_MAX, code_below(tracked, root, "jobs", "sensors")) == {}


def test_no_function_is_longer_than_a_screen(root: Path, tracked: list[Path]) -> None:
    long = {
        f"{path.relative_to(root)}:{node.lineno} {node.name}": code_lines(node)
        for path in code_below(tracked, root)
        for node in list_nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_no_test_folder_is_a_package_or_hides_a_module_of_python(root: Path, tracked: list[Path]) -> None:
    tests = code_below(tracked, root, "tests")
    assert [path for path in tests if path.name == "__init__.py"] == []
    assert not (root / "tests" / "platform").exists()
