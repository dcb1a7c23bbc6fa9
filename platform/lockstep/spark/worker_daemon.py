"""The daemon that Spark forks its Python workers from: it imports the modules that each needs, once and from bytecode.

Spark runs it by `spark.python.daemon.module`. PySpark's own daemon imports itself from `pyspark.zip`, which holds no
bytecode, and leaves all other imports to each worker.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.spark.surplus_worker import with_end

PRELOADED = ("pyspark.worker", "lockstep.engine.executor.task")
"""Modules whose import starts no thread that a fork would lose: those of Arrow's allocator and of BLAS are restarted by
their libraries in the child. No module of the user's is among them: it might do anything."""
PRELOADED_IF_INSTALLED = ("pandas", "pyarrow.pandas_compat")
"""Arrow imports pandas with its first array of Python values: 0.18 CPU seconds and 24 MB in each worker, measured."""

MALLOC_OPTIONS = {"M_MMAP_THRESHOLD": (-3, 1 << 20), "M_TRIM_THRESHOLD": (-1, 16 << 20)}
"""Options of glibc's `mallopt`, each with its number in `malloc.h` and our value in bytes.

Each open LMDB environment allocates lists of 2 MiB (zeroed) and 1 MiB and touches little of them. glibc maps blocks of
that size until the first is freed and then takes them from the heap: a worker with 1,000 partitions held 3.3 GB and
spent 15 % of its time on zeroing them. A set threshold does not move: 0.4 GB. The second option spares the system calls
of a heap whose top grows and shrinks by more than 128 kB; 256 MB of it would be kept, not reused.
"""


OOM_SCORE = "500"
"""Added to the score by which the kernel chooses the process to end: as if it had half of the memory more."""


def drop_archives(path: list[str]) -> list[str]:
    """The import path without the archives of the pyspark that is installed in a folder anyway.

    Args:
        path: The import path, in which Spark puts `pyspark.zip` and that of py4j first.
    """
    archives = [entry for entry in path if entry.endswith(".zip")]
    packages = [Path(entry, "pyspark") for entry in path if entry not in archives]
    installed = next((folder for folder in packages if folder.is_dir()), None)
    if installed is None:
        return path
    return [entry for entry in path if entry not in archives or installed not in Path(entry).parents]


def move_working_folder_last(path: list[str], folder: str) -> list[str]:
    """The import path with the working folder behind the folders that the stream names.

    `python -m` puts it first: the code of a shadow would lose to modules of the same name there.

    Args:
        path: The import path of a process that was started by `python -m`.
        folder: The working folder.
    """
    return [*path[1:], folder] if path[:1] == [folder] else path


def set_malloc_options() -> bool:
    """Set `MALLOC_OPTIONS` for this process and its forks. False if the C library has no such options."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) == 1 for option in MALLOC_OPTIONS.values())


def set_oom_score() -> None:
    """Let the kernel end a worker before the driver, the JVM or a broker when the memory of the machine is used up.

    Spark starts a worker again. Each process may raise its own score.
    """
    with suppress(OSError):  # the system has no such file
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def import_modules() -> None:
    """Import the modules that each worker needs."""
    for name in PRELOADED:
        importlib.import_module(name)
    for name in PRELOADED_IF_INSTALLED:
        with suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """Serve Spark until it closes the standard input."""
    sys.path[:] = drop_archives(move_working_folder_last(sys.path, os.getcwd()))  # noqa: PTH109  # as `python -m` wrote it
    import_modules()
    set_malloc_options()
    set_oom_score()
    gc.freeze()  # the collector of a worker does not touch, and so not copy, the pages that it shares
    daemon: Any = importlib.import_module("pyspark.daemon")
    daemon.worker = with_end(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
