"""Each case has its golden rows, verdicts and states: as a whole, in batches, and with a crash after each batch.

`pytest tests/correctness/golden --write-golden` rewrites them: read the difference before you commit it.
"""

from __future__ import annotations

import pytest

from lockstep.testing.script import Split
from tests.correctness.golden.cases import CASES, Case, as_text

SPLITS = [1, 7, Split(3, crashes=False)]


def test_there_is_a_case_for_each_class_and_each_thing_that_goes_wrong() -> None:
    streams = {case.stream.name for case in CASES}
    assert {"none", "once", "ordered", "window", "reorder", "strict", "suspends"} <= streams
    assert len(CASES) >= 14


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_comes_to_its_golden_texts(case: Case, request: pytest.FixtureRequest) -> None:
    came = as_text(case.ran())
    if request.config.getoption("--write-golden"):
        case.write(came)
    assert case.expected() == came


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_comes_to_the_same_in_batches_that_crash(case: Case, split: int | Split) -> None:
    assert case.expected() == as_text(case.ran(split))
