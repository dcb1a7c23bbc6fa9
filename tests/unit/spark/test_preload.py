"""A worker imports nothing more for its first arrays: its daemon has imported everything."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from lockstep.spark.worker_daemon import import_modules
import_modules()
before = set(sys.modules)
import pyarrow as pa
pa.array([1, 2], pa.int64())
pa.repeat(pa.scalar("a", pa.string()), 3)
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - {"pyarrow"}))
"""


def test_the_first_arrays_of_a_worker_import_no_other_package() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
