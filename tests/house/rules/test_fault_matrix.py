"""The fault matrix is correct: it has every fault, its tests exist, and it has every marked test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.matrix.fault import Fault
from tests.faults.matrix.matrix import MATRIX, REQUIRED, page
from tests.support.syntax import parse_file

TESTS = Path(__file__).parents[2]
Marked = dict[str, set[str]]


def marks(function: ast.FunctionDef) -> set[str]:
    """Return the ids of `@pytest.mark.fault(...)`."""
    calls = [each for each in function.decorator_list if isinstance(each, ast.Call)]
    return {
        argument.value
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.fault"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def functions_of(path: Path) -> list[ast.FunctionDef]:
    body = parse_file(path).body
    return [each for each in body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]


def missing(node: str) -> bool:
    """Return whether a test is missing."""
    file, _, name = node.partition("::")
    return not (TESTS / file).exists() or name not in {each.name for each in functions_of(TESTS / file)}


def marked() -> Marked:
    """Return the faults that tests are marked to prove, by node."""
    return {
        f"{path.relative_to(TESTS)}::{function.name}": ids
        for path in sorted(TESTS.rglob("test_*.py"))
        if "mark.fault(" in path.read_text()
        for function in functions_of(path)
        if (ids := marks(function))
    }


def unlisted(by_test: Marked, matrix: tuple[Fault, ...]) -> list[tuple[str, str]]:
    """Return the marks of tests that the matrix lacks."""
    proofs = {fault.id: set(fault.proven_by) for fault in matrix}
    return [(node, id_) for node, ids in by_test.items() for id_ in sorted(ids) if node not in proofs.get(id_, set())]


def test_every_required_fault_is_in_the_list_once() -> None:
    ids = [fault.id for fault in MATRIX]
    assert (sorted(REQUIRED - set(ids)), len(ids)) == ([], len(set(ids)))
    assert ids == sorted(ids)


@pytest.mark.parametrize("fault", MATRIX, ids=lambda fault: fault.id)
def test_every_fault_is_proven_by_tests_that_exist(fault: Fault) -> None:
    assert fault.proven_by
    assert [node for node in fault.proven_by if missing(node)] == []


def test_every_marked_test_is_in_the_list() -> None:
    by_test = marked()
    assert unlisted(by_test, MATRIX) == []
    own = [(node, fault.id) for fault in MATRIX for node in fault.proven_by if node.startswith("faults/matrix/")]
    assert [(node, id_) for node, id_ in own if id_ not in by_test.get(node, set())] == []


def test_the_list_is_read_by_people_as_it_is() -> None:
    assert (TESTS.parent / "docs" / "faults.md").read_text() == page()


def test_a_test_that_is_gone_or_not_listed_would_be_noticed() -> None:
    assert missing("house/rules/test_fault_matrix.py::test_of_nothing")
    assert missing("faults/matrix/test_nothing.py::test_of_nothing")
    assert not missing("house/rules/test_fault_matrix.py::test_every_marked_test_is_in_the_list")
    assert unlisted({"house/rules/test_fault_matrix.py::test_of_nothing": {"F01"}}, MATRIX) == [
        ("house/rules/test_fault_matrix.py::test_of_nothing", "F01")
    ]
