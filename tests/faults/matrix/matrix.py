"""The fault matrix as data: faults, expected outcomes, and the tests that prove them.

Tests below tests/faults declare their faults by `@pytest.mark.fault(...)`; other tests need no mark.
tests/house/rules/test_fault_matrix.py compares both. The entries are in proofs.py; docs/faults.md is the list as a
page:

    python -m tests.faults.matrix.matrix > docs/faults.md
"""

from __future__ import annotations

import sys

from tests.faults.matrix.fault import Fault
from tests.faults.matrix.proofs import DAGSTER, LOGS_AND_WRITERS, MACHINES

REQUIRED = frozenset(f"F{number:02d}" for number in range(1, 82)) - {"F73"}
"""Faults that this list must contain; F73, the cost of 30 days of batches, is a benchmark."""

MATRIX: tuple[Fault, ...] = tuple(sorted((*MACHINES, *LOGS_AND_WRITERS, *DAGSTER), key=lambda fault: fault.id))

PAGE = """# Faults: expected outcomes and their proofs

{intro}

"""
INTRO = (
    "Each fault is produced in a real run, with a proof that it happened; then the tables are compared with a plain "
    "fold of the log that shares no code with lockstep. The expected outcome is in italics. "
    "[tests/faults/matrix/proofs.py](../tests/faults/matrix/proofs.py) names the tests of each fault and their tier; "
    "`.venv/bin/python -m tests.faults.matrix.matrix > docs/faults.md` generates this page."
)


def page() -> str:
    """Return the list as a page."""
    return PAGE.format(intro=INTRO) + "".join(map(_line, MATRIX))


def _line(fault: Fault) -> str:
    left = f". Not covered: {fault.left}" if fault.left else ""
    return f"- **{fault.id}** {fault.what}: *{fault.expected}*{left}.\n"


if __name__ == "__main__":
    sys.stdout.write(page())
