"""A process imports from the copy that was made at its start, also after edits of the working folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.engine.driver import import_roots, startup
from lockstep.engine.driver.import_roots import find_code_version, find_import_roots
from lockstep.model import code_version
from lockstep.model.code_version import CodeVersion, remember_code
from lockstep.operations.inspect.history import read_history
from lockstep.settings import load_settings
from lockstep.table.commit import OutputLog, commit_claim
from lockstep.user_code.pin import copy_code
from tests.support.adding_stream import adding
from tests.support.offline_stream import Offline

GIT = shutil.which("git") or "git"
LIBRARY = str(Path(code_version.__file__).parents[2])
LOCATION = """
import json, os, sys, time
from lockstep import code_location
from assets import orders

print(json.dumps([orders.__file__, orders.VERSION, code_location.defs]), flush=True)
sys.stdin.readline()
sys.path.insert(1, "/")  # as Spark does: Python searches folders without __init__.py again
from assets import later
import shared
print(json.dumps([later.__file__, later.VERSION, shared.VERSION]), flush=True)
"""
EXTENSION = """
import shared, shared_parts.units.prices
from assets import orders
from lockstep.extensions import Feature, Panel, register_command
FEATURE = Feature(name="own")

@register_command("own_figures", Panel.INSPECT)
def own_figures() -> None:
    pass
"""
WORKER = "import json; from assets import later, orders; print(json.dumps([later.VERSION, orders.VERSION]))"


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_version, "_IMPORTED", {})


def write_project(folder: Path, version: int) -> None:
    """Write a project whose modules all have one version."""
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    for name in ("assets/orders.py", "assets/later.py", "shared.py"):
        (folder / name).write_text(f"VERSION = {version}\n")
    (folder / "definitions.py").write_text(f"from assets.orders import VERSION\ndefs = VERSION + {version}\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write_project(folder, 1)
    return folder


def start_location(project: Path) -> subprocess.Popen[str]:
    """Start a process of the code location, as Dagster does for each run."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")},
        "PYTHONPATH": LIBRARY,
        "LOCKSTEP_TABLE_ROOT": str(project.parent / "tables"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", LOCATION],
        cwd=project,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_an_edit_reaches_the_next_run_and_no_worker_of_a_living_run(project: Path) -> None:
    with start_location(project) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        file, version, definitions = json.loads(started.stdout.readline())
        copy = Path(file).parents[1]
        assert (version, definitions, copy.parent) == (1, 2, project.parent / "tables.code" / "copies")
        write_project(project, 2)
        # Without -P the working folder would be the first entry; the worker daemon moves it to the end.
        late = [sys.executable, "-P", "-c", WORKER]
        said = subprocess.run(late, cwd=project, env={"PYTHONPATH": str(copy)}, capture_output=True, check=True)
        assert json.loads(said.stdout) == [1, 1], "a worker that starts after the edit"
        started.stdin.write("\n")
        started.stdin.flush()
        assert json.loads(started.stdout.readline()) == [str(copy / "assets" / "later.py"), 1, 1], "a late import"
    with start_location(project) as successor:
        out = successor.communicate("\n")[0]
        assert json.loads(out.splitlines()[0])[1:] == [2, 4]


def test_on_a_cluster_without_a_shared_code_root_files_are_imported_in_place(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("LOCKSTEP_SPARK__MASTER", "spark://master:7077")
    assert not load_settings().has_shared_code
    monkeypatch.setenv("LOCKSTEP_CODE_ROOT", str(project / "shared"))
    settings = load_settings()
    assert settings.has_shared_code
    assert settings.find_code_root() == project / "shared"


@pytest.mark.parametrize(
    ("tables", "root"),
    [("var/tables", "var/tables.code"), ("/data/t", "/data/t.code"), ("s3://bucket/tables", "var/tables.code")],
)
def test_copies_are_next_to_the_tables(tables: str, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_TABLE_ROOT", tables)
    assert load_settings().find_code_root() == tmp_path / root


def call_git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    said = subprocess.run([GIT, *identity, *arguments], cwd=folder, capture_output=True, check=True, text=True)
    return said.stdout.strip()


def test_the_version_of_a_working_folder_is_its_commit_and_whether_its_code_differs(project: Path) -> None:
    root = project.parent / "code"
    assert copy_code(project, root)[1].commit == "", "no repository"
    call_git(project, "init", "-q")
    assert copy_code(project, root)[1].commit == "", "no commit"
    call_git(project, "add", ".")
    call_git(project, "commit", "-q", "-m", "first")
    commit = call_git(project, "rev-parse", "HEAD")
    clean = copy_code(project, root)[1]
    assert clean == CodeVersion(digest=clean.digest, commit=commit)
    (project / "README.md").write_text("not code")
    assert copy_code(project, root)[1] == clean
    (project / "assets" / "new.py").write_text("")
    changed = copy_code(project, root)[1]
    assert (changed.commit, changed.is_modified) == (commit, True)
    assert str(changed) == f"working folder, commit {commit[:10]}, modified (code {changed.digest[:12]})"


def test_head_and_history_name_the_version_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Offline(adding("topics"), tmp_path)

    def claim(version: CodeVersion | None) -> str:
        monkeypatch.setattr(startup, "find_code_version", lambda _: version)
        return runs.claim().cause

    release = CodeVersion(digest="a" * 64, release="v2")
    assert claim(release).endswith("; release v2 (code aaaaaaaaaaaa)")
    output = OutputLog(runs.folders.table)
    assert output.base().head.code_version == release
    assert read_history(runs.folders, last=1).events[-1].detail.endswith("release v2 (code aaaaaaaaaaaa)")
    output.commit(commit_claim(1, output.table_id, lambda _: None, cause="by an operator"))
    assert output.base().head.code_version == release, "an operator's claim runs no code"
    claim(None)
    assert output.base().head.code_version is None, "a run of files that may change"


def test_the_version_is_that_of_the_copy_of_the_transform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = CodeVersion(digest="a" * 64)
    remember_code(tmp_path, version)
    stream = adding("topics")
    assert find_import_roots(stream)[1:] == (tmp_path,), "its types may be in the copy"
    assert find_code_version(stream) is None, "a file outside of the copy may change"
    for installed in (import_roots.LIBRARY_ROOT, Path("/opt/venv/lib/python3.11/site-packages")):
        monkeypatch.setattr(import_roots, "find_module_root", lambda _, root=installed: (root,))
        assert find_code_version(stream) == version


def import_in(project: Path, text: str, *, first: str = "import lockstep.code_location", **environment: str) -> str:
    """Return the output of a text that imports from the code location of a project."""
    variables = {**os.environ, "PYTHONPATH": LIBRARY, "LOCKSTEP_TABLE_ROOT": str(project.parent / "tables")}
    command = [sys.executable, "-c", f"{first}\n{text}"]
    said = subprocess.run(
        command, cwd=project, env={**variables, **environment}, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


@pytest.mark.parametrize("name", ["secrets", "msgspec"])
def test_a_folder_of_scripts_hides_no_installed_module(project: Path, name: str) -> None:
    (project / name).mkdir()
    (project / name / "rotate.py").write_text("")
    assert import_in(project, f"import {name}; print({name}.__file__)").endswith(f"{name}/__init__.py") or (
        import_in(project, f"import {name}; print({name}.__file__)").endswith(f"{name}.py")
    )


def test_without_the_right_to_write_next_to_the_tables_copies_are_next_to_the_state(project: Path) -> None:
    blocked = project.parent / "tables.code"
    blocked.write_text("a file")
    local = project.parent / "local"
    found = import_in(project, "from assets import orders; print(orders.__file__)", LOCKSTEP_LOCAL_ROOT=str(local))
    assert Path(found).is_relative_to(local / "code" / "copies")
    with pytest.raises(AssertionError, match=r"(?s)cannot be written.*next: let this user write there"):
        import_in(project, "", LOCKSTEP_CODE_ROOT=str(blocked))


def test_tables_within_the_project_are_not_copied(project: Path) -> None:
    tables = project / "assets" / "tables"
    for _ in range(2):
        text = "from assets import orders; print(orders.__file__)"
        copy = Path(import_in(project, text, LOCKSTEP_TABLE_ROOT=str(tables))).parents[1]
        tables.mkdir(exist_ok=True)
        (tables / "rows.py").write_text("")
    assert copy.parent == project / "assets" / "tables.code" / "copies"
    assert sorted(path.name for path in (copy / "assets").iterdir() if path.name != "__pycache__") == [
        "later.py",
        "orders.py",
    ]


@pytest.mark.parametrize("extension", ["own", "ours.own"])
def test_an_extension_that_imports_the_project_pins_no_code_of_the_working_folder(
    project: Path, extension: str
) -> None:
    """The cases are nested folders without __init__.py, an extension in a package, and an extension with a command."""
    (project / "shared_parts" / "units").mkdir(parents=True)
    (project / "shared_parts" / "units" / "prices.py").write_text("VERSION = 1\n")
    module = project.joinpath(*extension.split(".")).with_suffix(".py")
    module.parent.mkdir(exist_ok=True)
    module.write_text(EXTENSION)
    program = f"""
from lockstep.cli import __main__
from lockstep.feature import list_features
assert list_features()[-1].name == "own"
from lockstep import code_location
import assets.orders, json, shared, shared_parts.units.prices, sys, {extension}
modules = (assets.orders, shared, shared_parts.units.prices, {extension})
print(json.dumps([module.__file__ for module in modules]))
"""
    found = json.loads(import_in(project, program, first="", LOCKSTEP_EXTENSIONS=json.dumps([extension])))
    assert [Path(other).is_relative_to(project) for other in found] == [False] * 4
