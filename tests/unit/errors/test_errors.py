"""Errors carry their parts, state the next step, and survive the transfer from a worker to the driver."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep import errors
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.model.finding import Finding
from tests.unit.errors.every import EVERY, GAP

if TYPE_CHECKING:
    from lockstep.errors import LockstepError

GOLDEN = Path(__file__).parent / "golden"
BRANCH = re.compile(r"(?P<depth>(?:[|` ]  )*)(?:[|`]- )?(?P<name>[A-Z]\w+) {2,}.*?(?:\((?P<module>[\w/]+)\.py\))?")

Kinds = dict[str, type["LockstepError"]]


def drawn() -> dict[str, tuple[str, str]]:
    """Return the tree drawn at the top of errors.py: each class with its drawn base and its module."""
    path: list[str] = []
    tree = {}
    for line in str(errors.__doc__).splitlines():
        if (found := BRANCH.fullmatch(line)) is not None:
            depth = 0 if line.startswith("LockstepError") else 1 + len(found["depth"]) // 3
            path[depth:] = [found["name"]]
            tree[found["name"]] = (path[depth - 1] if depth else "Exception", found["module"] or "errors")
    return tree


def test_the_tree_is_drawn_as_it_is(kinds: Kinds) -> None:
    """Every class is drawn below its base, with its module."""
    assert drawn() == {
        name: (kind.__bases__[0].__name__, kind.__module__.removeprefix("lockstep.").replace(".", "/"))
        for name, kind in kinds.items()
    }


def test_an_error_of_every_class_is_tried_here(kinds: Kinds) -> None:
    assert sorted(type(error).__name__ for error in EVERY) == sorted(kinds)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_reads_as_its_golden_text(error: LockstepError, request: pytest.FixtureRequest) -> None:
    golden = GOLDEN / f"{type(error).__name__}.txt"
    if request.config.getoption("--write-golden"):
        golden.write_text(f"{error}\n")
    assert f"{error}\n" == golden.read_text()


def test_no_golden_text_is_of_a_class_that_is_gone(kinds: Kinds) -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(kinds)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_from_a_worker(error: LockstepError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_ends_with_its_next_step(error: LockstepError) -> None:
    assert error.next_step
    assert str(error) == f"{error.problem}\n  next: {error.next_step}"


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_a_class_says_which_parts_it_carries(error: LockstepError) -> None:
    """The docstring of a class describes each public attribute of its errors."""
    described = " ".join(str(kind.__doc__) for kind in type(error).__mro__ if kind is not Exception)
    public = [name for name in vars(error) if not name.startswith("_")]
    assert [name for name in public if f"{name}: " not in described] == []


def test_a_halt_carries_the_place_and_the_evidence() -> None:
    (finding,) = IntegrityLost("books", (GAP,)).findings
    assert (finding.topic, finding.partition, finding.offset, finding.session) == ("books.eth", 0, 120, "eth")
    assert (finding.expected, finding.found) == ("7", "9, missing 7 to 8")


def test_a_finding_over_many_offsets_names_the_first_and_the_last() -> None:
    finding = Finding(cause="hole", topic="t", topic_id="id", partition=2, offset=5, until=9, detail="why")
    assert str(finding) == "hole at t/2 offset 5 to 8 (why)"
