"""A release is complete or absent, one of two deployments wins and is named, and a kill leaves no lock."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lockstep.cli.__main__ import app
from lockstep.errors import LockstepError
from lockstep.features.deploy import deploy
from lockstep.features.deploy.deploy import Deployment, prepare_release, prepare_return, run_deployment
from lockstep.features.deploy.releases import (
    ReleaseUnusable,
    choose_release,
    find_current_code,
    list_releases,
    list_switches,
    name_release,
    open_release,
    read_current,
)
from lockstep.model.code_version import CodeVersion
from lockstep.settings import Settings, load_settings
from lockstep.user_code import copies
from lockstep.user_code.pin import copy_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
STREAM = """
from tests.support.adding_stream import adding

VERSION = {version}
stream = adding(r"deployed\\..+")
"""


@pytest.fixture(autouse=True)
def _as_in_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the modules named `assets` and release held copies, as the end of a process does."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "assets"}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "assets"]:
        del sys.modules[name]
    sys.modules.update(known)
    while copies._HELD:  # noqa: SLF001
        os.close(copies._HELD.popitem()[1])  # noqa: SLF001


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write_project(folder, 1)
    return folder


def write_project(folder: Path, version: int) -> None:
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    (folder / "assets" / "deployed.py").write_text(STREAM.format(version=version))


@pytest.fixture
def settings(project: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOCKSTEP_TABLE_ROOT", str(project.parent / "tables"))
    (project.parent / "tables").mkdir()
    return load_settings()


@pytest.fixture
def root(settings: Settings) -> Path:
    return settings.find_code_root()


def deploy_as(project: Path, settings: Settings, name: str) -> None:
    run_deployment(prepare_release(project, settings, name), settings, project, "me", lambda _: None)


def go_back(project: Path, settings: Settings, name: str = "") -> None:
    run_deployment(prepare_return(project, settings, name), settings, project, "me", lambda _: None)


def find_version(root: Path) -> str:
    """Return the version of the code that the next run imports, empty for the working folder."""
    found = find_current_code(root)
    if found is None:
        return ""
    text = (found[0] / "assets" / "deployed.py").read_text()
    return f"{found[1].release}: {text.partition('VERSION = ')[2][0]}"


def test_runs_import_the_current_release_until_the_next_switch(project: Path, settings: Settings, root: Path) -> None:
    assert find_version(root) == ""
    deploy_as(project, settings, "v1")
    write_project(project, 2)
    assert find_version(root) == "v1: 1", "an edit is not a deployment"
    deploy_as(project, settings, "v2")
    assert find_version(root) == "v2: 2"
    go_back(project, settings)
    assert find_version(root) == "v1: 1"
    go_back(project, settings, "v2")
    assert find_version(root) == "v2: 2"
    deploy_as(project, settings, "")
    assert find_version(root) == ""
    go_back(project, settings)
    assert find_version(root) == "v2: 2"
    assert [each.release for each in list_switches(root)] == ["", "v1", "v2", "v1", "v2", "", "v2"]


def test_before_the_first_release_there_is_nothing_to_return_to(project: Path, settings: Settings) -> None:
    with pytest.raises(ReleaseUnusable, match="no release was current"):
        prepare_return(project, settings, "")
    with pytest.raises(ReleaseUnusable, match=r"release v9: .* has no release of this name"):
        prepare_return(project, settings, "v9")


def test_a_name_is_of_one_code_for_good(project: Path, settings: Settings, root: Path) -> None:
    deploy_as(project, settings, "v1")
    deploy_as(project, settings, "v1")
    assert len(list_switches(root)) == 2, "repeated, as after a kill"
    write_project(project, 2)
    with pytest.raises(ReleaseUnusable, match="release v1: has the code"):
        deploy_as(project, settings, "v1")
    assert find_version(root) == "v1: 1"


@pytest.mark.parametrize("name", ["", "..", "../v1", "a/b", "V1", "-v", "ü", "a\n", "a" * 61, ".hidden", "a b"])
def test_a_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(ReleaseUnusable, match="a name has small letters"):
        deploy.refuse_name(name)


def test_one_of_two_deployments_wins_by_name(project: Path, settings: Settings, root: Path) -> None:
    first = prepare_release(project, settings, "v1")
    write_project(project, 2)
    second = prepare_release(project, settings, "v2")
    run_deployment(second, settings, project, "other", lambda _: None)
    with pytest.raises(ReleaseUnusable, match="release v1: release v2 became current meanwhile, by other"):
        run_deployment(first, settings, project, "me", lambda _: None)
    assert find_version(root) == "v2: 2"


def test_of_many_switches_at_once_each_follows_the_one_that_it_saw(root: Path) -> None:
    start = Barrier(8)

    def switch(number: int) -> bool:
        seen = read_current(root)
        start.wait()
        try:
            choose_release(root, seen, f"v{number}", "me")
        except ReleaseUnusable:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for rounds in range(1, 4):
            assert sum(pool.map(switch, range(8))) == 1
            assert [each.number for each in list_switches(root)] == list(range(rounds + 1))


def run_until(steps: int, work: Callable[[], None]) -> int:
    """Work in a process that is killed after a number of file operations. Return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = itertools.count(steps, -1)

    def count(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if next(left) <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for name in ("link", "fsync", "rename"):
        setattr(os, name, count(getattr(os, name)))
    for name in ("mkdir", "rename", "open", "unlink"):
        setattr(Path, name, count(getattr(Path, name)))
    work()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_kill_at_any_step_leaves_the_old_or_the_new_release(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated command completes the release."""

    def plan_nothing(copy: Path, version: CodeVersion, *_: object) -> Deployment:
        del copy
        planned = deploy.DeployPlan(release=version.release, code=version, before=seen.release, streams=())
        return Deployment(plan=planned, seen=seen, declared=())

    monkeypatch.setattr(deploy, "_plan", plan_nothing)
    outcomes = set[str]()
    for step in itertools.count():
        code_root = project.parent / f"code-{step}"
        place = settings.model_copy(update={"code_root": code_root})
        write_project(project, 1)
        seen = read_current(code_root)
        deploy_as(project, place, "v1")
        write_project(project, 2)
        seen = read_current(code_root)
        ended = run_until(step, lambda: deploy_as(project, place, "v2"))  # noqa: B023  # called here
        outcomes.add(find_version(code_root))
        seen = read_current(code_root)
        deploy_as(project, place, "v2")
        assert find_version(code_root) == "v2: 2"
        if ended == 0:
            break
    assert step > 8
    assert outcomes == {"v1: 1", "v2: 2"}


def test_the_copy_of_a_release_is_kept_and_a_missing_one_is_named(
    project: Path, settings: Settings, root: Path
) -> None:
    deploy_as(project, settings, "v1")
    for version in range(2, copies.KEPT + 5):
        write_project(project, version)
        while copies._HELD:  # noqa: SLF001
            os.close(copies._HELD.popitem()[1])  # noqa: SLF001
        copy_code(project, root)
    assert find_version(root) == "v1: 1"
    missing = CodeVersion(digest="0" * 64, commit="abc")
    name_release(root, "v0", missing, "me")
    with pytest.raises(ReleaseUnusable, match=r"release v0: its copy 0000.* is missing") as refused:
        open_release(root, "v0")
    assert refused.value.next_step == "check out its commit abc, then lockstep deploy v0"


def test_code_that_does_not_load_is_refused_before_the_switch(project: Path, settings: Settings, root: Path) -> None:
    deploy_as(project, settings, "v1")
    (project / "assets" / "deployed.py").write_text("import no_such_module")
    with pytest.raises(LockstepError, match=r"assets/deployed\.py cannot be imported"):
        deploy_as(project, settings, "v2")
    assert [each.name for each in list_releases(root)] == ["v1"]


def test_the_command_deploys_lists_and_returns(project: Path, settings: Settings) -> None:
    del settings

    def call(*arguments: str) -> str:
        with chdir(project):
            said = CliRunner().invoke(app, ["deploy", *arguments], catch_exceptions=False)
        assert said.exit_code == 0, said.output
        return " ".join(said.output.split())

    assert call("--list") == "runs import the working folder"
    assert "the working folder -> release v1 (code" in call("v1", "--plan")
    assert call("--list") == "runs import the working folder"
    assert "adding does not run its next run has this code" in call("v1")
    assert call("--list").endswith("current")
    assert "current: working folder (code" in call("--back")
