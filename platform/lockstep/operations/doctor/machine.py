"""Java, jars, ports, folders, disks."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import lmdb
import psutil

from lockstep import native
from lockstep.addresses import is_in_object_store
from lockstep.errors import EnvironmentProblem
from lockstep.operations.doctor.diagnosis import Diagnosis, make_error, make_ok, make_warning
from lockstep.spark.jars import LOCK, check_jars_lock, find_cache_folder, read_lock
from lockstep.spark.java import find_java, find_java_problem
from lockstep.state.local_store import MAP_BYTES
from lockstep.storage import require_own_folder, require_writable_folder
from lockstep.table.layout import TableRootMissing, require_root
from lockstep.time_limit import SLOW, describe_silence

PORTS = {3000: "Dagster's web UI"}
"""Ports in use by default."""

WEB_SERVERS = ("dagster-webserver", "dagster_webserver", "lockstep.orchestration.web_server")
"""Programs and modules that serve Dagster's pages; `dagster dev` starts the second."""
FOREIGN_HOST = "attacker.invalid"
ANSWER_SECONDS = 1.0
CONTENT_MAX = 10_000

FETCHED_BY = {
    "delta": "the first start of Spark fetches them",
    "s3": "the first check of a table fetches them",
    "kafka": "only the bundled Kafka needs them: make demo, make up and the tests fetch them",
}


def check_java() -> Iterator[Diagnosis]:
    """The Java that Spark would use."""
    problem = find_java_problem(os.environ)
    if problem is not None:
        yield make_error("Java", problem.what, problem.next_step)
    else:
        yield make_ok("Java", f"{find_java(os.environ)} runs Spark")


def check_extension() -> Iterator[Diagnosis]:
    """The optional extension in Rust."""
    name = "lockstep-native"
    problem = native.describe_absence()
    if problem is None:
        yield make_ok(name, "installed and used")
    elif native.interface is None:
        yield make_ok(name, f"{problem}; to change that: {native.INSTALL}")
    else:
        yield make_warning(name, problem, native.INSTALL)


def check_jars(root: Path) -> Iterator[Diagnosis]:
    """The cached jars for a table root, each hashed; nothing is fetched."""
    groups = ["delta", "kafka"]
    if is_in_object_store(root):
        groups.insert(1, "s3")
    for group in groups:
        name = f"jars ({group})"
        locked = read_lock(LOCK, group)
        folder = find_cache_folder(locked)
        if not folder.exists():
            yield make_warning(
                name, f"not in {folder} yet", f"{FETCHED_BY[group]}; or now: python -m lockstep.spark.jars"
            )
            continue
        try:
            check_jars_lock(locked, folder)
        except EnvironmentProblem as problem:
            yield make_error(name, problem.problem, problem.next_step)
        else:
            yield make_ok(name, f"{len(locked)} jars, every SHA-256 as locked")


def check_ports() -> Iterator[Diagnosis]:
    """Whether a server could listen; a port in use may already be served by the intended program."""
    for port, purpose in PORTS.items():
        with socket.socket() as probe:
            probe.settimeout(ANSWER_SECONDS)
            free = probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED  # not a server that accepts slowly
        if not free:
            yield make_warning(f"port {port}", f"in use: by {purpose}, or by another program", "fine if it is Dagster")
        else:
            yield make_ok(f"port {port}", f"free for {purpose}")


def check_web_servers() -> Iterator[Diagnosis]:
    """Dagster's web servers on this machine: whether they answer under a name that a foreign page could use."""
    for port in sorted({*PORTS, *_find_web_server_ports()}):
        name = f"web server on port {port}"
        try:
            answer = _ask_as_foreigner(port)
        except TimeoutError:
            silence = describe_silence("it", ANSWER_SECONDS)
            yield make_warning(name, f"{silence}: whether it refuses other sites is unknown", f"{SLOW}: repeat it")
            continue
        if answer is None:
            continue
        if answer:
            problem = "answers for any host name and runs what any page in a browser of this machine sends"
            step = "python -m lockstep.orchestration.web_server and dagster-daemon run, in place of dagster dev"
            yield make_warning(name, problem, f"{step} (docs/security.md)")
        else:
            yield make_ok(name, "refuses what pages of other sites send")


def _find_web_server_ports() -> Iterator[int]:
    """Ports on which processes with a web server of Dagster listen."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word in WEB_SERVERS for word in map(_name_program, process.cmdline())):
                sockets = process.net_connections("inet")
                yield from (socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN)


def _name_program(word: str) -> str:
    """A word of a command without its folder."""
    return word.rpartition("/")[2]


def _ask_as_foreigner(port: int) -> bool | None:
    """Whether Dagster's web server on a port answers under a foreign name; None if there is none.

    Raises:
        TimeoutError: A server has accepted the connection, and does not answer.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/server_info", headers={"Host": FOREIGN_HOST})
        answer = connection.getresponse()
        content = answer.read(CONTENT_MAX)
    except TimeoutError:
        raise
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    # The answer of the guard to a foreign host name.
    if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
        return False
    return True if b"dagster_webserver_version" in content else None


ROOM_BYTES_MIN = 1 << 30
ROOM_BYTES_WARN = 10 << 30
"""Below a gigabyte a single compaction may not fit; below ten, a weekend may not."""
SYNC_SECONDS_WARN = 0.03
SYNCS = 9
"""A batch waits for about three syncs: at 30 ms each they cost a tenth of a second."""
CLOCK_SECONDS_MAX = 60.0
"""Far below the 36 hours after which a commit refuses a file as too old."""
IN_MEMORY = ("tmpfs", "ramfs")
OVER_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.s3fs", "fuse.sshfs")
"""File systems whose exclusive creation or syncing has exceptions."""


def check_table_root(root: Path) -> Iterator[Diagnosis]:
    """The table root, which holds all durable files."""
    name = "table root"
    folder = _nearest(root)
    if (problem := _unwritable(name, root, folder)) is not None:
        yield problem
        return
    yield _room(name, folder)  # first: in a full folder nothing else can be tried
    with tempfile.TemporaryDirectory(prefix=".lockstep-doctor-", dir=folder) as draft:
        yield _exists(name, root)
        yield _exclusive(Path(draft))
        yield _syncs(Path(draft))
        yield _clock(Path(draft))
    yield _kind(name, root, must_last=True)


def check_local_root(root: Path) -> Iterator[Diagnosis]:
    """The folder of local stores: its loss does no harm, but lmdb must work in it."""
    name = "local root"
    try:
        require_own_folder(root)
        require_writable_folder(root)
    except EnvironmentProblem as error:
        yield make_error(name, error.problem, error.next_step)
        return
    folder = _nearest(root)
    if (problem := _unwritable(name, root, folder)) is not None:
        yield problem
        return
    yield _room(name, folder)
    with tempfile.TemporaryDirectory(prefix=".lockstep-doctor-", dir=folder) as draft:
        yield _maps(name, Path(draft))
    yield _kind(name, root, must_last=False)


def check_temporary_folder() -> Iterator[Diagnosis]:
    """Room for the files of a process: `TMPDIR`, or the system's own."""
    yield _room("temporary folder", Path(tempfile.gettempdir()))


def _exists(name: str, root: Path) -> Diagnosis:
    """Whether a table root that could be made is there; the default one is made by the first start."""
    try:
        require_root(root)
    except TableRootMissing as missing:
        return make_warning(name, missing.problem, missing.next_step)
    return make_ok(name, f"{root} can be written")


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent: the first start creates missing folders."""
    if folder.exists() or folder == folder.parent:
        return folder
    return _nearest(folder.parent)


def _unwritable(name: str, root: Path, folder: Path) -> Diagnosis | None:
    if not folder.is_dir():
        return make_error(
            name, f"{root} cannot be made: {folder} is not a folder", f"name another {name.replace(' ', '_')}"
        )
    if not os.access(folder, os.W_OK):
        return make_error(name, f"{root} cannot be written by this user", f"give the user the right to write {folder}")
    return None


def _exclusive(draft: Path) -> Diagnosis:
    """Whether the second of two exclusive creations fails; commits depend on it."""
    name = "exclusive creation"
    path = draft / "once"
    path.open("xb").close()
    try:
        path.open("xb").close()
    except FileExistsError:
        return make_ok(name, "the second creator of a file is refused")
    step = "put table_root on a file system that has exclusive creation: two writers could both commit here"
    return make_error(name, "a file was created twice", step)


def _syncs(draft: Path) -> Diagnosis:
    took = []
    with (draft / "synced").open("wb") as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            began = time.monotonic()
            file.flush()
            os.fsync(file.fileno())
            took.append(time.monotonic() - began)
    # The median: one slow sync of a busy disk is not its speed.
    median = statistics.median(took)
    figure = f"4 KiB are synced in {median * 1000:.2f} ms (median of {SYNCS})"
    if median > SYNC_SECONDS_WARN:
        return make_warning("fsync", figure, "each batch waits for three syncs: use a faster disk, or larger batches")
    return make_ok("fsync", figure)


def _clock(draft: Path) -> Diagnosis:
    """A commit refuses files that seem old, so the store's clock and this machine's must agree."""
    name = "table root: clock"
    path = draft / "now"
    path.touch()
    apart = abs(path.stat().st_mtime - time.time())
    if apart > CLOCK_SECONDS_MAX:
        step = "set both clocks by NTP: files are judged by their age before they are committed or vacuumed"
        return make_error(name, f"the clock of the file system is {apart:.0f} s from this machine's", step)
    return make_ok(name, "the file system's clock is this machine's, within a minute")


def _maps(name: str, draft: Path) -> Diagnosis:
    try:
        lmdb.open(str(draft / "probe.mdb"), subdir=False, map_size=MAP_BYTES, lock=False, sync=False).close()
    except (lmdb.Error, OSError) as problem:
        step = "use a local disk; raise the limit of virtual memory (ulimit -v)"
        return make_error(name, f"lmdb cannot map {MAP_BYTES >> 30} GiB there: {problem}", step)
    return make_ok(name, f"lmdb maps {MAP_BYTES >> 30} GiB (virtual) there")


def _kind(name: str, folder: Path, *, must_last: bool) -> Diagnosis:
    kind = find_file_system(folder.absolute(), Path("/proc/mounts").read_text(encoding="utf-8"))
    what = f"{name}: file system"
    if must_last and kind in IN_MEMORY:
        return make_warning(
            what, f"{kind} is gone with a restart of the machine", "set table_root to a folder on a disk"
        )
    if kind in OVER_NETWORK:
        step = "a local disk, or a network file system that you have seen to sync and to create exclusively"
        return make_warning(what, f"{kind} is a network file system", step)
    return make_ok(what, kind)


def find_file_system(folder: Path, mounts: str) -> str:
    """The type of file system that holds a folder, from the text of /proc/mounts. Pure."""
    fields = [line.split() for line in mounts.splitlines()]
    holding = [(len(parts[1]), parts[2]) for parts in fields if folder.is_relative_to(_unescaped(parts[1]))]
    return max(holding, default=(0, "unknown"))[1]


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ")


def _room(name: str, folder: Path) -> Diagnosis:
    free = shutil.disk_usage(folder).free
    what = f"{name}: room"
    figure = f"{free / 1e9:.1f} GB free"
    if free < ROOM_BYTES_MIN:
        return make_error(what, figure, f"make room: a batch that cannot be written ends the run ({folder})")
    if free < ROOM_BYTES_WARN:
        return make_warning(what, figure, "make room, or watch it: a compaction holds old and new files for three days")
    return make_ok(what, figure)
