"""A time-out is reported in one format: the silent party, the time, and no cause (`lockstep.time_limit`)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.syntax import parse_file

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = Path(__file__).resolve().parents[3] / "platform" / "lockstep"
TEXT = "describe_silence"

# Modules that handle a time-out of a process by themselves, each with its reason.
PROCESSES = {
    "time_limit": "the one place",
    "spark.java": "runs on a bare Python, before anything is installed",
}
# Functions that compare a clock and raise another error, each with its reason.
OTHER_ERRORS = {
    "declare.decoders.schema_registry._body": "an answer that is too large; the time-out is told by its caller",
    "store_clients.repeat_broken_off": "raises the error of the last request",
    "engine.driver.spark_job.warm_up": "raises what `explain_idle` makes",
    "kafka.admin.find_oldest_unread": "raises for the settings of the client; what is not answered is left out",
    "operations.lifecycle._ended": "a takeover; what is not ended is fenced",
    "verify.kafka_reader._read_ends": "raises the error of the last question",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(LIBRARY.rglob("*.py")):
        yield ".".join(path.relative_to(LIBRARY).with_suffix("").parts), parse_file(path)


def names_in(node: ast.AST) -> set[str]:
    """Return every name and attribute in a part of a program."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def limits_of_processes(tree: ast.AST) -> Iterator[int]:
    """Yield lines that limit or judge the time of a process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "TimeoutExpired":
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_of_subprocess = isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess"
            if is_of_subprocess and any(each.arg == "timeout" for each in node.keywords):
                yield node.lineno


def untold(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of handlers that report a time-out without the shared text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or node.type is None or "TimeoutError" not in names_in(node.type):
            continue
        passes_on = any(isinstance(each, ast.Raise) and each.exc is None for each in ast.walk(node))
        caught = node.name is not None and any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "str"
            and node.name in names_in(each)
            for each in ast.walk(node)
        )  # fmt: skip
        hands_on = any(isinstance(each, ast.Call) and "_failed" in names_in(each.func) for each in ast.walk(node))
        if not (passes_on or caught or hands_on or names_in(node) & {TEXT, f"_{TEXT}", "continue"}):
            yield node.lineno


def raises_beside_a_clock(function: ast.AST) -> bool:
    """Return whether a function compares a clock and raises an error, without the text of a time-out."""
    compares = any(isinstance(each, ast.Compare) and "monotonic" in names_in(each) for each in ast.walk(function))
    raises = any(isinstance(each, ast.Raise) for each in ast.walk(function))
    return compares and raises and TEXT not in names_in(function)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


def test_no_other_module_limits_the_time_of_a_process() -> None:
    found = {
        f"{name}:{line}" for name, tree in modules() if name not in PROCESSES for line in limits_of_processes(tree)
    }
    assert found == set()


def test_every_time_out_is_told_by_the_one_text() -> None:
    assert {f"{name}:{line}" for name, tree in modules() if name not in PROCESSES for line in untold(tree)} == set()


def test_an_error_after_a_wait_is_told_by_the_one_text() -> None:
    found = {
        f"{name}.{function.name}"
        for name, tree in modules()
        for function in functions(tree)
        if raises_beside_a_clock(function)
    }
    assert found == OTHER_ERRORS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['x'], timeout=3)",
        "try:\n    f()\nexcept subprocess.TimeoutExpired:\n    raise ValueError('no Java')",
    ],
)
def test_a_limit_of_a_process_is_found(source: str) -> None:
    assert list(limits_of_processes(ast.parse(source)))


def test_a_cause_that_is_made_up_is_found() -> None:
    wrong = ast.parse("try:\n    f()\nexcept TimeoutError as late:\n    raise ValueError('the disk is slow') from late")
    right = ast.parse(f"try:\n    f()\nexcept TimeoutError as late:\n    raise ValueError({TEXT}('it', 3)) from late")
    assert list(untold(wrong)) == [3]
    assert not list(untold(right))


def test_a_wait_that_makes_up_a_cause_is_found() -> None:
    source = "def wait():\n    if monotonic() > 3:\n        raise ValueError({})"
    assert raises_beside_a_clock(ast.parse(source.format("'no daemon'")))
    assert not raises_beside_a_clock(ast.parse(source.format(f"{TEXT}('it', 3)")))
