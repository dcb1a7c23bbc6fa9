"""Python workers fork from our daemon: it imports modules in advance, and PySpark from a folder with bytecode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

from lockstep.spark.surplus_worker import end_after_task
from lockstep.spark.worker_daemon import PRELOADED, drop_archives, move_working_folder_last
from tests.integration.cluster.cluster_runs import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


def test_the_archive_of_the_installed_pyspark_is_dropped(tmp_path: Path) -> None:
    archives = [str(tmp_path / "site" / "pyspark" / "python" / "lib" / name) for name in ("pyspark.zip", "py4j.zip")]
    (tmp_path / "site" / "pyspark").mkdir(parents=True)
    others = [str(tmp_path / "code"), str(tmp_path / "user.zip"), str(tmp_path / "site")]
    assert drop_archives([*archives, *others]) == others


def test_an_archive_of_another_pyspark_stays(tmp_path: Path) -> None:
    """A Spark distribution next to an environment: the JVM needs its version of PySpark."""
    (tmp_path / "site" / "pyspark").mkdir(parents=True)
    path = [str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip"), str(tmp_path / "site")]
    assert drop_archives(path) == path
    assert drop_archives(path[:1]) == path[:1]


def test_workers_are_forked_with_what_they_need(shared_spark: SparkSession) -> None:
    def look(_: Iterable[int]) -> Iterator[tuple[str, list[str], int]]:
        import pyspark as seen

        yield str(seen.__file__), sorted(sys.modules), os.getppid()

    found = shared_spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
    assert len({parent for *_, parent in found}) == 1
    for file, modules, _ in found:
        assert file == pyspark.__file__
        assert set(PRELOADED) <= set(modules)


def test_a_worker_that_a_task_ends_is_replaced_when_it_is_needed(shared_spark: SparkSession) -> None:
    context = shared_spark.sparkContext

    def run(*, ends: bool) -> set[int]:
        def work(_: Iterable[int]) -> Iterator[int]:
            if ends:
                end_after_task()
            yield os.getpid()

        return set(context.parallelize(range(1), 1).mapPartitions(work).collect())

    before = {pid for _ in range(4) for pid in run(ends=False)}
    ended = set[int]()
    while not before <= ended:  # Spark assigns each task to the worker that has waited longest
        ended |= run(ends=True)
    wait_until(lambda: not any(map(psutil.pid_exists, ended)), "the workers have ended")
    assert len({pid for _ in range(4) for pid in run(ends=False)} - ended) == 1


def test_what_is_imported_before_the_fork_starts_no_thread_but_those_that_survive_it() -> None:
    """A new process is inspected, as other tests may have used the workers."""
    script = f"""
import importlib, pathlib, sys
for name in {PRELOADED}: importlib.import_module(name)
print(*sorted((thread / "comm").read_text().strip() for thread in pathlib.Path("/proc/self/task").iterdir()), sep=",")
print("pandas" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    of_arrow = "jemalloc_bg_thd"
    of_python = {"python", "python3", Path(sys.executable).resolve().name[:15]}
    assert set(found[0].split(",")) <= {of_arrow, *of_python}  # BLAS names its threads as the process
    assert found[1] == "False"


def test_an_open_store_costs_a_worker_little_memory() -> None:
    """Without the options of malloc, LMDB's lists of 3 MiB per store are on the heap after the first free."""
    script = """
import sys, tempfile
from pathlib import Path
import psutil
from lockstep.spark.worker_daemon import set_malloc_options
from lockstep.state.local_store import LocalStore, StoreFile
assert set_malloc_options()
def opened(folder, count):
    files = [StoreFile(Path(folder, str(number)), None) for number in range(count)]
    stores = [LocalStore(file, lambda store: store.file.close()) for file in files]
    for store in stores:
        store.apply([(b"session", b"value")], b"stamp")
    return stores
with tempfile.TemporaryDirectory() as folder:
    before = psutil.Process().memory_info().rss
    for store in opened(folder, 200):
        store.close()
    stores = opened(folder, 200)
    print((psutil.Process().memory_info().rss - before) / len(stores))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert float(found.stdout) < 300_000, found.stderr


def test_the_working_folder_is_looked_at_last() -> None:
    assert move_working_folder_last(["/here", "/there", "/here"], "/here") == ["/there", "/here", "/here"]
    assert move_working_folder_last(["/there", "/here"], "/here") == ["/there", "/here"]


def test_a_stream_is_folded_by_its_own_code_though_the_working_folder_has_a_module_of_that_name(tmp_path: Path) -> None:
    """A shadow is an example: its run starts in the folder of the deployed code."""
    for place in ("deployed", "fixed"):
        module = tmp_path / place / "streams" / "books.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"def read(_):\n    yield {place!r}\n")
    script = """
import sys
from pathlib import Path
from lockstep.settings import SparkSettings
from lockstep.spark.session import start_context
sys.path.insert(0, sys.argv[1])
import streams.books
settings = SparkSettings(master="local[1]", options={"spark.ui.enabled": "false"})
context = start_context(settings, "a shadow", import_roots=(Path(sys.argv[1]),))
print(streams.books.read(0).__next__(), *context.parallelize(range(1), 1).mapPartitions(streams.books.read).collect())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "fixed")]
    found = subprocess.run(command, cwd=tmp_path / "deployed", capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["fixed", "fixed"], found.stderr
