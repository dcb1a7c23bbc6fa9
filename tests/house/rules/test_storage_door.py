"""Only `lockstep.storage` touches files under the table root, so that a new storage needs one implementation."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.syntax import parse_file

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = Path(__file__).resolve().parents[3] / "platform" / "lockstep"

# Modules that touch files without `lockstep.storage`, each with its reason: none is a file under the table root.
OTHER_FILES = {
    "storage": "the door itself",
    "declare.decoders.schema_registry": "a password file",
    "declare.derived": "the source file of a function",
    "declare.discovery": "the source files of assets/",
    "feature": "the settings file",
    "html_page": "tries a file that the user names",
    "kafka.secrets": "a password file",
    "features.deploy": "looks at copies of code, outside of the table root",
    "features.current.view": "a temporary folder of a query",
    "features.inference": "writes the files of a stream into a project",
    "features.localdev": "brokers, recordings and processes of a local platform",
    "features.history.diff": "writes a file that the user names",
    "operations.doctor": "probes a folder as a file system, beneath what the door promises",
    "operations.inspect.message": "writes a file that the user names",
    "operations.project": "writes the files of a project into a folder that the user names",
    "operations.project_streams": "the same, for one stream",
    "operations.quarantine": "writes a file that the user names",
    "operations.show_settings": "the settings file",
    "orchestration.launch": "the workspace file of Dagster",
    "orchestration.pruning": "files of Dagster's storage",
    "features.rehearsal": "files of the processes of a load test, whose tables go through the door",
    "settings": "the settings file",
    "user_code": "copies of code outside of the table root, with locks of processes",
    "spark": "jars, and the folder of Java",
    "state.local_store": "local copies of state: a format and locks of their own, on each machine's own disk",
    "state.local_store_pool": "the folders of these copies",
    "testing": "the files of a user's tests",
    "verify": "the proof reads with readers of its own",
}
# The state of a process is in /proc and the limit of its container in /sys, which are not storage.
READS_PROC = {"boot", "control.heartbeat", "engine.executor.collector", "engine.executor.worker_memory"}

PATH_METHODS = {
    *("chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "iterdir", "lchmod", "link_to", "mkdir"),
    *("read_bytes", "read_text", "readlink", "rename", "rglob", "rmdir", "stat", "symlink_to", "unlink"),
    *("walk", "write_bytes", "write_text"),
}
FILE_MODULES = {"os", "shutil", "tempfile", "fcntl", "mmap"}
NOT_FILES = {
    "cpu_count",
    "environ",
    "getenv",
    "gettempdir",
    "getpgid",
    "getpid",
    "getppid",
    "kill",
    "killpg",
    "sched_getaffinity",
    "sysconf",
}
OPENERS = {
    *("DeltaTable", "ParquetFile", "ParquetDataset", "read_metadata", "read_schema", "read_table"),
}
"""Libraries' functions that take a path, which must be from `Storage.uri`."""
READERS_OF_TEXT = {"load", "Path"}
"""Functions of Spark and Hadoop that take a path as text; other functions have the same names."""


def files_touched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and call of each expression in a module that opens, lists, changes or queries files."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := file_call(node)) is not None:
            yield node.lineno, name


def file_call(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id == "open" or opens_itself(function.id, call) else None
    if not isinstance(function, ast.Attribute):
        return None
    name = function.attr
    owner = function.value
    if isinstance(owner, ast.Name) and owner.id in FILE_MODULES:
        return None if name in NOT_FILES else f"{owner.id}.{name}"
    if is_door(owner):
        return None
    is_file = (
        name in PATH_METHODS
        or (name == "touch" and not call.args)
        or is_path_replace(name, call)
        or is_path_open(name, call)
    )
    return f".{name}" if is_file or opens_itself(name, call) else None


def is_door(owner: ast.expr) -> bool:
    """Return whether a method's owner is a storage: `find_storage(...)`, or a variable named `storage`."""
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "find_storage"
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in {"storage", "_storage"}


def is_path_replace(name: str, call: ast.Call) -> bool:
    """Return whether a call is `path.replace(target)`; text takes two arguments, structs and times take keywords."""
    return name == "replace" and len(call.args) == 1 and not call.keywords


def is_path_open(name: str, call: ast.Call) -> bool:
    """Return whether a call is `path.open("rb")` or `path.open(encoding=...)`; other classes open other things."""
    if not call.args:
        return name == "open" and any(keyword.arg in {"mode", "encoding", "buffering"} for keyword in call.keywords)
    mode = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    return name == "open" and isinstance(mode, str) and set(mode) <= set("rwxab+t")


def opens_itself(name: str, call: ast.Call) -> bool:
    """Return whether a library's function takes a path that is neither from `Storage.uri` nor an open file."""
    if name in READERS_OF_TEXT:
        return any(is_text_of_path(argument) for argument in call.args)
    return name in OPENERS and call.args != [] and not is_address(call.args[0])


def is_text_of_path(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name) and argument.func.id == "str"


def is_address(argument: ast.expr) -> bool:
    """Return whether an argument is an address from the storage, or bytes that it has read."""
    if not isinstance(argument, ast.Call) or not isinstance(argument.func, ast.Attribute):
        return False
    return argument.func.attr in {"uri", "open_source", "BufferReader"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(LIBRARY).with_suffix("").parts).removesuffix(".__init__")


def is_one_of(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def touched_in(path: Path) -> list[str]:
    return [f"{module_of(path)}:{line} {call}" for line, call in files_touched(parse_file(path))]


def test_stored_files_are_touched_through_the_door_only() -> None:
    without = sorted(
        found
        for path in LIBRARY.rglob("*.py")
        if not is_one_of(module_of(path), {*OTHER_FILES, *READS_PROC})
        for found in touched_in(path)
    )
    assert without == []


def test_each_module_that_touches_other_files_does_so() -> None:
    """Unneeded reasons must be removed."""
    touching = {module_of(path) for path in LIBRARY.rglob("*.py") if touched_in(path)}
    unneeded = [name for name in OTHER_FILES if not any(is_one_of(module, {name}) for module in touching)]
    assert unneeded == []


def test_what_is_read_of_processes_is_only_proc() -> None:
    for module in READS_PROC:
        path = LIBRARY.joinpath(*module.split(".")).with_suffix(".py")
        assert {found.partition(" ")[2] for found in touched_in(path)} <= {".read_text", ".readlink"}


def test_the_walk_finds_files_and_nothing_else() -> None:
    program = """
path.read_bytes(); path.open("rb"); path.open(encoding="utf-8"); path.replace(target); path.touch(exist_ok=False)
os.unlink(path); open(path); DeltaTable(folder); timers.touch(session)
reader.load(str(table)); reader.load(storage.uri(table)); state.load(session)
text.replace("a", "b"); structs.replace(head, batch=1); os.getpid(); Writer.open(folder, label)
DeltaTable(storage.uri(folder)); find_storage(path).replace(path, content); storage.exists(path); timer.start()
"""
    assert [call for _, call in files_touched(ast.parse(program))] == [
        *(".read_bytes", ".open", ".open", ".replace", ".touch", "os.unlink", "open", "DeltaTable", ".load")
    ]
