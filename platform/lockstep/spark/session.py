"""Starts Spark.

Jars are those of a checked cache, never from `--packages` at run time.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import lockstep
from lockstep.addresses import is_in_object_store
from lockstep.errors import EnvironmentProblem
from lockstep.model.code_version import list_code_folders
from lockstep.settings import SparkSettings
from lockstep.spark.class_archive import find_spark_archive, make_use_options
from lockstep.spark.gateway import start_gateway
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import find_java, require_java
from lockstep.store_clients import find_region

if TYPE_CHECKING:
    from pyspark import SparkContext


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVMs schedule; Python and Arrow do the work. Without its second compiler and with the plain
collector one starts at about half the CPU (measured: 17.0 to 8.7 CPU seconds on a crowded machine)."""

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
"""Instead of Spark's own, with which each run starts with a banner of warnings that need no action."""

LOOPBACK = "127.0.0.1"
ON_THIS_MACHINE = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # Its ports take Java objects: of this process alone, not of other users. Spark makes a secret of each run.
    "spark.authenticate": "true",
    # The driver sends heartbeats to itself. One that is due while a slow start goes on meets a block manager without
    # an id, and Spark logs an error of its `Inbox`: so the first one is due after two minutes.
    "spark.executor.heartbeatInterval": "120s",
    "spark.network.timeout": "600s",
}
"""For local masters: only this process may reach the driver."""

ON_A_CLUSTER = {
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    # An executor that is silent for this long is given up, and its task runs elsewhere. All partitions
    # of the batch wait until then. Spark's own 120 s, checked once a minute, would be up to three
    # minutes; below some 15 s a machine that only swaps or migrates would lose its work.
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "5s",
    # A cancelled task that does not end would hold a core forever: past this its executor is ended.
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "60s",
    # YARN and Kubernetes end an application after so many lost executors (twice `spark.executor.instances`, at least
    # three), YARN after so many of its masters. Without this they count those of months.
    "spark.executor.failuresValidityInterval": "1h",
    "spark.yarn.am.attemptFailuresValidityInterval": "1h",
    # Executors come and go with the stream, not with its load: each batch is a job of a fraction of a second.
    "spark.dynamicAllocation.enabled": "false",
}
"""For all other masters; `[spark.options]` of the settings takes precedence (docs/cluster.md)."""

PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
SOCKET_FILES = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER = "spark.python.unix.domain.socket.dir"
SOCKET_PATH_BYTES_MAX = 107
"""Linux has 108 bytes for the address of a socket, of which the last is zero."""
_SOCKET_NAME_BYTES = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
_MASTERS_OF_SHORT_FOLDERS = ("local", "spark://")
"""Their JVMs have Java's own folder for temporary files, /tmp, unless the user's options move it."""
_JAVA_OPTIONS = (
    *("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"),
    *("spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions"),
)
_JAVA_TEMPORARY = "-Djava.io.tmpdir="


def is_local(master: str) -> bool:
    """Whether a master runs its executors inside the driver."""
    return master.startswith("local") and not master.startswith("local-cluster")


def may_use_socket_files(master: str, options: Mapping[str, str]) -> bool:
    """Whether JVM and Python can meet at socket files: each folder of these is known, and short enough for Linux.

    They are in the folder of `SOCKET_FOLDER`, otherwise in Java's folder for temporary files. YARN moves the latter
    into the folder of each container, whose path alone is too long.

    Args:
        master: The Spark master.
        options: The user's Spark properties.
    """
    if SOCKET_FOLDER in options:
        return _is_short(options[SOCKET_FOLDER])
    words = list[str]()
    for name in _JAVA_OPTIONS:
        words += _split_options(options.get(name, ""))
    moved = [word.removeprefix(_JAVA_TEMPORARY) for word in words if word.startswith(_JAVA_TEMPORARY)]
    return master.startswith(_MASTERS_OF_SHORT_FOLDERS) and all(map(_is_short, moved))


def _split_options(options: str) -> list[str]:
    """The single options, as Spark splits them; it refuses those whose quotes have no end."""
    try:
        return shlex.split(options)
    except ValueError:
        return []


def _is_short(folder: str) -> bool:
    return len(os.fsencode(folder)) + _SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX


def make_spark_properties(
    settings: SparkSettings, *, import_roots: tuple[Path, ...] = (), tables: Path | None = None
) -> dict[str, str]:
    """The properties of every session of lockstep.

    Args:
        settings: Master, memory, and the user's additions.
        import_roots: Folders from which executors import the user's stream modules.
        tables: Table root that Spark itself reads; None for streams, whose tasks read in Python.
    """
    jars = resolve_jars("delta")
    properties_of_store: dict[str, str] = {}
    if tables is not None and is_in_object_store(tables):
        jars += resolve_jars("s3")
        properties_of_store = _make_object_store_properties()
    return {
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": make_driver_options(_archive_options()),
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Delta reads its log in 50 tasks by default; a stream's log is small.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.python.daemon.module": "lockstep.spark.worker_daemon",
        # Halves the fixed cost of a Python task (measured).
        SOCKET_FILES: str(may_use_socket_files(settings.master, settings.options)).lower(),
        # Streams of one process get equal shares of the cores: by default the oldest job's tasks are started first.
        "spark.scheduler.mode": "FAIR",
        # A speculative second attempt would only read the same ranges twice.
        "spark.speculation": "false",
        "spark.ui.showConsoleProgress": "false",
        # Its pages have no login: they show settings, and a link from any other page could cancel jobs.
        "spark.ui.enabled": "false",
        "spark.ui.killEnabled": "false",
        **(ON_THIS_MACHINE if is_local(settings.master) else ON_A_CLUSTER),
        **properties_of_store,
        **settings.options,
        PYTHON_PATH: ":".join(map(str, _list_python_path(settings, import_roots))),
    }


def _list_python_path(settings: SparkSettings, import_roots: tuple[Path, ...]) -> tuple[Path | str, ...]:
    """The import path of executors: the user's property, or that of this process."""
    declared = settings.options.get(PYTHON_PATH)
    if declared is None:
        return (*import_roots, Path(lockstep.__file__).parents[1])
    # Copies that the driver imports precede it: workers of another folder would fold with other code.
    return (*list_code_folders(), declared)


def _make_object_store_properties() -> dict[str, str]:
    """Hadoop's client for S3, configured by the variables that lockstep's own clients read."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    region = find_region()
    settings = {"aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"}
    if endpoint:
        settings |= {"endpoint": endpoint, "path.style.access": "true"}
    if region:
        settings["endpoint.region"] = region
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()},
    }


def make_driver_options(further: tuple[str, ...]) -> str:
    """The Java options of the driver's JVM, with further ones."""
    options = (f"-Dlog4j2.configurationFile={LOG_SETTINGS}", *further)
    return " ".join([JAVA_OPTIONS, *(f'"{option}"' for option in options)])  # quoted: paths may have spaces


def _archive_options() -> tuple[str, ...]:
    """The driver maps the archive of classes, if one was made for this Java and this pyspark."""
    java = find_java(os.environ)
    if java is None:
        return ()
    return make_use_options(find_spark_archive(java))


def start_context(
    settings: SparkSettings, name: str, *, import_roots: tuple[Path, ...] = (), tables: Path | None = None
) -> SparkContext:
    """Start Spark without SQL, which a stream does not use and which costs half as much again.

    A session requested later in this process uses it.

    Raises:
        EnvironmentProblem: As `prepare_session` does; or Spark did not start with these settings.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # heavy; only runs pay for it
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    properties = prepare_session(settings, import_roots=import_roots, tables=tables)
    try:
        start_gateway(properties)
        return SparkContext.getOrCreate(SparkConf().setAppName(name).setAll(list(properties.items())))
    except (Py4JError, PySparkException) as error:
        names = ", ".join(sorted(settings.options)) or "no options"  # their values may be secrets
        used = f"master={settings.master!r}, driver_memory={settings.driver_memory!r} and {names}"
        raise EnvironmentProblem(
            f"Spark did not start with {used}: {_find_reason(error)}",
            next_step="correct [spark] in lockstep.toml, or LOCKSTEP_SPARK__* in the environment; `lockstep doctor` "
            "looks at Java and the jars; what Java itself said stands in the log before this",
        ) from error


def _find_reason(error: Exception) -> str:
    """The exception of Java, without its frames; of a JVM that did not start the text of PySpark."""
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return text.strip().splitlines()[0]


def prepare_session(
    settings: SparkSettings, *, import_roots: tuple[Path, ...] = (), tables: Path | None = None
) -> dict[str, str]:
    """Check that this process can start the session; returns its properties.

    Raises:
        EnvironmentProblem: No usable Java, a missing jar, or a session of another kind
            already runs in this process: its static configuration would silently stay.
    """
    from pyspark import SparkContext  # heavy; only runs pay for it

    require_java()
    _silence_query_errors()
    _name_python(settings.options.get("spark.pyspark.python"))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA_OPTIONS)  # of the JVM that only composes the command
    if is_local(settings.master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # Spark's UI listens there; no property says where
    wanted = make_spark_properties(settings, import_roots=import_roots, tables=tables)
    running = SparkContext._active_spark_context  # noqa: SLF001  # what getOrCreate itself looks at
    if running is not None:
        _refuse_other(running, wanted)
    return wanted


def _silence_query_errors() -> None:
    """PySpark prints each error of a query as JSON with its frames, and raises it: who catches it tells it."""
    from pyspark.logger import PySparkLogger  # heavy; only runs pay for it

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _name_python(chosen: str | None) -> None:
    """The Python of the executors: this interpreter, unless the cluster's environment is elsewhere.

    PySpark reads only the environment, and would ignore its own property.
    """
    if chosen is not None:
        os.environ["PYSPARK_PYTHON"] = chosen
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _refuse_other(running: SparkContext, wanted: dict[str, str]) -> None:
    current = dict(running.getConf().getAll())
    for key in ("spark.master", "spark.driver.memory", "spark.jars", "spark.sql.extensions"):
        if current.get(key) != wanted[key]:
            raise EnvironmentProblem(
                f"this process already runs a Spark session with {key} = {current.get(key)!r}, not {wanted[key]!r}",
                next_step="stop that session, or run the stream in a process of its own",
            )
