"""Makes a copy of this repository, whose platform a test starts."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_repository(folder: Path) -> None:
    """Copy definitions and streams, because links to code are refused; link the recordings."""
    shutil.copy(ROOT / "definitions.py", folder)
    for name in ("assets", "jobs", "sensors", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tests").symlink_to(ROOT / "tests")
