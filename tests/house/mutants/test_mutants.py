"""The table of mutants fits the library, and a run of mutants distinguishes tested rules from untested rules."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.house.mutants import run
from tests.house.mutants.mutant import Mutant, find_test
from tests.house.mutants.run import NotGreen, Outcome, is_accepted, make_table, run_mutants
from tests.house.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[3]


def test_the_piece_of_each_mutant_occurs_once_and_what_replaces_it_is_python() -> None:
    """If a change of the library fails here, update the mutant's piece to the rule's new source."""
    for mutant in MUTANTS:
        source = (ROOT / mutant.file).read_text()
        mutated = mutant.change(source)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source)), mutant.name


def test_the_near_tests_of_each_mutant_are_there() -> None:
    assert [(mutant.name, node) for mutant in MUTANTS for node in mutant.tests if not find_test(ROOT, node)] == []


def test_each_mutant_has_a_name_and_a_change_of_its_own() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    changes = Counter((mutant.file, mutant.piece, mutant.replacement) for mutant in MUTANTS)
    assert [found for found, count in (names + changes).items() if count > 1] == []


LIBRARY = """
LIMIT = 3

def clamp(number):
    if number > LIMIT:
        return LIMIT
    return max(number, 0)
"""
TESTS = """
import time
from shape.clamping import clamp

def test_no_number_is_above_the_limit():
    assert clamp(7) == 3

def test_a_number_within_the_limits_stays():
    assert clamp(2) == 2

def test_of_something_else():
    assert clamp
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of one function and its tests."""
    for path, source in {"platform/shape/clamping.py": LIBRARY, "tests/test_clamping.py": TESTS}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(source)
    return tmp_path


def mutant(name: str, piece: str, replacement: str, test: str, equivalent: str = "") -> Mutant:
    return Mutant(
        name, "platform/shape/clamping.py", piece, replacement, (f"tests/test_clamping.py::{test}",), equivalent
    )


UPPER = ("if number > LIMIT:", "if False:")
LOWER = ("max(number, 0)", "number")


def judged(root: Path, *mutants: Mutant) -> tuple[list[Outcome], bool]:
    verdicts = run_mutants(root, mutants, 2, lambda _: None)
    return [each.outcome for each in verdicts], is_accepted(verdicts)


def test_a_rule_that_a_test_sees_is_killed_and_one_that_none_sees_survives(root: Path) -> None:
    lines = list[str]()
    verdicts = run_mutants(
        root,
        [
            mutant("upper", *UPPER, "test_no_number_is_above_the_limit"),
            mutant("lower", *LOWER, "test_a_number_within_the_limits_stays"),
        ],
        2,
        lines.append,
    )
    assert [(each.mutant.name, each.outcome) for each in verdicts] == [
        ("upper", Outcome.KILLED),
        ("lower", Outcome.SURVIVED),
    ]
    assert verdicts[0].detail == "tests/test_clamping.py::test_no_number_is_above_the_limit"
    assert not is_accepted(verdicts)
    assert lines[-1].startswith("1 killed, 0 equivalent, 1 survived")
    assert lines[-2].startswith("survived: lower: ")
    assert (root / "platform/shape/clamping.py").read_text() == LIBRARY


def test_a_mutant_that_is_called_equivalent_must_survive(root: Path) -> None:
    equal = mutant("equal", *LOWER, "test_a_number_within_the_limits_stays", "nobody asks for less than 0")
    assert judged(root, equal) == ([Outcome.EQUIVALENT], True)
    seen = mutant("seen", *UPPER, "test_no_number_is_above_the_limit", "it cannot be seen")
    assert judged(root, seen) == ([Outcome.NOT_EQUIVALENT], False)


@pytest.mark.slow
def test_a_mutant_that_cannot_be_imported_or_does_not_end_is_neither_killed_nor_survives(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = mutant("broken", "LIMIT = 3", "LIMIT = missing", "test_of_something_else")
    assert judged(root, broken) == ([Outcome.UNDECIDED], False)
    endless = mutant("endless", "return max(number, 0)", "while True: pass", "test_a_number_within_the_limits_stays")
    check_green = run._check_green  # noqa: SLF001  # the remaining steps must end soon

    def check_and_hurry(*arguments: object) -> None:
        check_green(*arguments)  # type: ignore[arg-type]  # as it was called
        monkeypatch.setattr(run, "SECONDS_MAX", 5.0)

    monkeypatch.setattr(run, "_check_green", check_and_hurry)
    assert judged(root, endless) == ([Outcome.UNDECIDED], False)


def test_a_test_that_fails_without_a_mutant_ends_the_run(root: Path) -> None:
    (root / "tests/test_clamping.py").write_text(TESTS + "\ndef test_wrong():\n    assert clamp(1) == 2\n")
    with pytest.raises(NotGreen, match="test_wrong"):
        run_mutants(root, [mutant("upper", *UPPER, "test_wrong")], 1, lambda _: None)


def test_a_piece_that_does_not_occur_once_ends_the_run(root: Path) -> None:
    for piece in ("LIMIT", "no such piece"):
        with pytest.raises(ValueError, match=r"occurs \d times"):
            run_mutants(root, [mutant("lost", piece, "", "test_of_something_else")], 1, lambda _: None)


def test_the_closing_table_has_a_count_of_each_outcome() -> None:
    assert make_table([]) == ["0 killed, 0 equivalent, 0 survived, 0 killed, though called equivalent, 0 undecided"]
