"""The measurements, as a table for people and as a file to keep."""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import confluent_kafka
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Usage
from benchmarks.workload import Size

_ROOT = Path(__file__).resolve().parents[1]
_MEASURED = ("platform", "benchmarks")
_PACKAGES = ("confluent-kafka", "msgspec", "pyarrow", "numpy", "pyspark", "delta-spark", "deltalake", "lmdb")


class Result(msgspec.Struct, frozen=True):
    """The runs of one system.

    Attributes:
        system: Its name.
        rows: Rows it wrote in each run.
        hash_sum: Sum of the rows' hashes, in hexadecimal (`benchmarks.verify`).
        start_up: Runs over the smoke size: nearly all start-up.
        runs: Runs over the whole size.
    """

    system: str
    rows: int
    hash_sum: str
    start_up: Sequence[Usage]
    runs: Sequence[Usage]

    @property
    def start_up_cpu_seconds(self) -> float:
        """Median CPU seconds of a run over the smoke size."""
        return median(run.cpu_seconds for run in self.start_up)

    def whole_per_million(self, size: Size) -> float:
        """Median CPU seconds per million messages, start-up included."""
        return median(run.cpu_seconds for run in self.runs) / size.messages * 1e6

    def steady_per_million(self, size: Size, smoke: Size) -> float | None:
        """The same without the cost of the smoke size; None for the smoke size itself."""
        if size == smoke:
            return None
        used = median(run.cpu_seconds for run in self.runs) - self.start_up_cpu_seconds
        return used / (size.messages - smoke.messages) * 1e6

    def messages_per_second(self, size: Size) -> float:
        """Messages per second of wall time, start-up included: median."""
        return size.messages / median(run.wall_seconds for run in self.runs)

    @property
    def peak_memory_mb(self) -> float:
        """Median over the runs of the peak of all its processes, in 10^6 bytes."""
        return median(run.peak_memory_bytes for run in self.runs) / 1e6


class Hardware(msgspec.Struct, frozen=True):
    """The machine; `load_average` (1 minute, at the start) shows how much others used of it."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    load_average: float


class Report(msgspec.Struct, frozen=True):
    """The whole report of a benchmark: settings, date, versions, hardware, and the figures."""

    date: str
    size: Size
    smoke: Size
    batch_messages: int
    versions: dict[str, str]
    hardware: Hardware
    results: Sequence[Result]
    commit: str = "unknown"


def versions() -> dict[str, str]:
    """Versions of the components. An interpreter built without optimization is half as fast."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    python = f"{platform.python_version()} ({'optimized' if optimized else 'plain'} build)"
    return {"python": python, "librdkafka": confluent_kafka.libversion()[0], **_installed()}


def hardware() -> Hardware:
    """This machine, without its name."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    cores = len(os.sched_getaffinity(0))
    return Hardware(_processor(), cores, round(memory, 1), platform.release(), round(os.getloadavg()[0], 2))


def commit() -> str:
    """The measured commit of the repository; "unknown" outside of one."""
    described = _git("rev-parse", "--short", "HEAD")
    if described is None:
        return "unknown"
    return described + ("+" if _git("status", "--porcelain", "--", *_MEASURED) else "")


def save(report: Report, folder: Path) -> Path:
    """Write the report as <date>-<size>.json; a later one of the same day replaces it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.date}-{report.size.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


def today() -> str:
    """The date of a report (UTC)."""
    return datetime.now(UTC).date().isoformat()


def show(report: Report, console: Console) -> None:
    """Print the figures, one column per system; ratios are to the first."""
    size = report.size
    title = f"{size.name}: {size.messages:,} messages, {size.topics:,} topics, {size.sessions:,} sessions"
    table = Table(title=title, caption=_CAPTION, caption_justify="left")
    table.add_column("median of the runs")
    for result in report.results:
        table.add_column(result.system, justify="right")
    columns = [_figures(result, report) for result in report.results]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)


_CAPTION = (
    "CPU: user and system time of all processes of a run, broker apart. Steady: without start-up, "
    "which is a run over the smoke size. Hash: sum of the rows' hashes, equal for equal rows."
)


def _figures(result: Result, report: Report) -> dict[str, str]:
    size, smoke, first = report.size, report.smoke, report.results[0]
    whole, steady = result.whole_per_million(size), result.steady_per_million(size, smoke)
    return {
        "CPU s per million messages, whole run": f"{whole:.2f}",
        f"  ratio to {first.system}": f"{whole / first.whole_per_million(size):.2f}",
        "CPU s per million messages, steady": _shown(steady),
        f"  ratio to {first.system}, steady": _shown(_ratio(steady, first.steady_per_million(size, smoke))),
        "start-up, CPU s (run over the smoke size)": f"{result.start_up_cpu_seconds:.2f}",
        "messages/s, whole run": f"{result.messages_per_second(size):,.0f}",
        "peak memory, MB": f"{result.peak_memory_mb:,.0f}",
        "rows": f"{result.rows:,}",
        "hash": result.hash_sum,
    }


def _git(*arguments: str) -> str | None:
    try:
        said = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)  # noqa: S607  # whichever git is there
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
