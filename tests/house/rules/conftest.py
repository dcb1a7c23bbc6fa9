"""Files for the house rules: the files that git tracks or would add."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """The repository's files without build artifacts."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not run: without git nobody knows which files are the repository's own")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in said.stdout.splitlines() if (ROOT / line).is_file()]
