"""Cases about all objects and all memory of a process: they run in a process that has few of both.

In a process of many tests a full collection visits millions of objects, and the system may swap out memory meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("cases", ["collector_cases.py", "worker_memory_cases.py"])
def test_each_case_holds(cases: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(FOLDER / cases)]
    said = subprocess.run(command, cwd=FOLDER.parents[2], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
