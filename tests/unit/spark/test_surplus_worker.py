"""The end of a Python worker of Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("error", ["EOFError", "BrokenPipeError", "ConnectionResetError"])
def test_a_worker_whose_socket_spark_has_closed_ends_without_a_traceback(error: str) -> None:
    code = f"from lockstep.spark.surplus_worker import with_end\ndef work():\n    raise {error}\nwith_end(work)()\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
