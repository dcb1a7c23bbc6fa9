"""Rules of the tiers of tests: no slow test is skipped silently, and each module with Spark runs in one worker."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SKIPPED = """
import pytest

@pytest.mark.slow
@pytest.mark.skipif(True, reason="strace is missing")
def test_by_its_mark(): ...

@pytest.mark.slow
def test_in_its_middle():
    pytest.skip("no mount namespace")

def test_of_the_usual_tier():
    pytest.skip("no compose")
"""
SPARK = """
def test_of_spark(shared_spark): ...
"""


def said(root: Path, folder: Path, source: str) -> str:
    """Return pytest's output for a module in another folder, with the hooks of these tests."""
    module = folder / "test_module.py"
    module.write_text(source)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-rs", "--rootdir", str(folder), str(module)]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_map_from_promises_to_files_names_every_folder_and_no_file_that_is_gone(root: Path) -> None:
    tests = root / "tests"
    promises = (tests / "README.md").read_text().partition("## From promise to file")[2].partition("## Rules")[0]
    named = set(re.findall(r"`([a-z_]+/[a-z_]+(?:/test_[a-z_]+\.py)?)`", promises))
    folders = {str(path.parent.relative_to(tests)) for path in tests.glob("*/*/test_*.py")}
    assert {name.partition("/test_")[0] for name in named} == folders
    assert [name for name in sorted(named) if not (tests / name).exists()] == []


def test_a_slow_test_that_is_skipped_fails_and_says_why(root: Path, tmp_path: Path) -> None:
    found = said(root, tmp_path, SKIPPED)
    assert [part in found for part in ("1 failed", "1 error", "1 skipped")] == [True, True, True]
    assert "a slow test was not run: " in found
    assert "strace is missing" in found
    assert "no mount namespace" in found


def test_a_module_with_spark_that_is_not_listed_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    assert "test_module.py needs Spark: add it to SPARK_MODULES" in said(root, tmp_path, SPARK)
