"""An extension of another version is not used, and the doctor says so."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lockstep.operations.doctor.diagnosis import Level

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from lockstep.operations.doctor.machine import check_extension
from lockstep.native import extension
(found,) = check_extension()
print(extension is not None, found.level.name, found.found, sep="|")
"""


@pytest.mark.parametrize(
    ("module", "is_used", "level", "text"),
    [
        ("raise ImportError", "False", Level.OK, "not installed: the same results for more CPU time"),
        ("INTERFACE = 0", "False", Level.WARNING, "has interface 0, and this lockstep calls 3: it is not used"),
        ("INTERFACE = 3", "True", Level.OK, "installed and used"),
    ],
)
def test_only_the_extension_of_this_version_is_used(
    module: str, is_used: str, level: Level, text: str, tmp_path: Path
) -> None:
    (tmp_path / "lockstep_native.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.split("|")
    assert said[:2] == [is_used, level.name]
    assert text in said[2]
