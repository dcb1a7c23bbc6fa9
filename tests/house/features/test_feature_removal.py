"""A feature is a folder: without it and its line, everything else imports, answers, validates and passes its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from lockstep.feature import INSTALLED, list_features
from tests.house.rules.test_imports import LIBRARY, ROOT, imports_of, module_of

FEATURES = {feature.name: feature for feature in list_features()}
TODAY = INSTALLED[datetime.now(UTC).toordinal() % len(INSTALLED)]
"""The feature that the usual tier removes without running the remaining tests; the slow tier runs them for all."""
CORE_TESTS = ("integrity", "table", "folds", "settings")
WHOLE_SECONDS = 1_200
"""These tests take 120 s of CPU time, and each worker of the suite has less than half a core."""
FEW_EXAMPLES = """
from hypothesis import settings

settings.register_profile("few", deadline=None, derandomize=True, max_examples=3)
"""
"""The tests must import and run without the feature; the suite itself runs their many examples."""
COPIED = (
    *("assets", "benchmarks", "definitions.py", "docs", "jobs", "native", "platform", "pyproject.toml", "sensors"),
    *("tests", "tools", "workspace.yaml", "README.md"),
)
WIRING = {
    "compaction": ("jobs/compaction.py", ("compaction_schedules",)),
    "current": ("jobs/current.py", ("current_schedules",)),
    "delivery": ("jobs/delivery.py", ("delivery_schedules",)),
    "derived": ("jobs/derived.py", ("derived_schedule",)),
    "export": ("jobs/export.py", ("export_schedules",)),
    "health": ("sensors/health.py", ("health_sensor",)),
    "host": ("jobs/hosts.py sensors/hosts.py", ("host_jobs", "host_schedules", "host_sensors")),
    "quality": ("jobs/quality.py", ("checks_schedules", "checks_job")),
    "retention": ("jobs/housekeeping.py", ("housekeeping_schedules",)),
}
"""The files of a project that wire a feature, and their names in definitions.py."""


@cache
def find_owner(module: str) -> str:
    """Return the feature of a module; empty for the core."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["lockstep", "features"] and len(parts) > 2 else ""  # its place


def list_needs(name: str) -> set[str]:
    """Return a feature with all features that it needs."""
    needs = {name}
    for other in FEATURES[name].needs:
        needs |= list_needs(other)
    return needs


def list_dependents(name: str) -> set[str]:
    """Return a feature with all features that need it."""
    return {other for other in INSTALLED if name in list_needs(other)}


def test_each_folder_is_installed_and_has_its_name() -> None:
    folders = {path.parent.name for path in (LIBRARY / "features").glob("*/feature.py")}
    assert folders == set(INSTALLED) == set(FEATURES)


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=module_of)
def test_a_module_imports_only_features_that_its_own_needs(path: Path) -> None:
    own = find_owner(module_of(path))
    allowed = list_needs(own) if own else set()
    imported = {find_owner(each.module) for each in imports_of(path)} - {""}
    assert imported <= allowed


def test_the_references_of_a_feature_lead_into_its_folder() -> None:
    for name, feature in FEATURES.items():
        text = (LIBRARY / "features" / name / "feature.py").read_text()
        assert set(re.findall(r"lockstep\.features\.(\w+)", text)) <= {name}, feature


def test_no_feature_is_named_outside_of_its_folder_by_text() -> None:
    """References are texts, which no import shows."""
    for path in LIBRARY.rglob("*.py"):
        named = set(re.findall(r'"lockstep\.features\.(\w+)', path.read_text()))
        assert named <= {find_owner(module_of(path))}


@pytest.mark.timeout(WHOLE_SECONDS)
def test_without_the_feature_of_today_the_rest_works(tmp_path: Path) -> None:
    """The test's name omits the feature, as workers may collect before and after midnight."""
    check_without(TODAY, tmp_path, "--collect-only")


@pytest.mark.timeout(WHOLE_SECONDS)
@pytest.mark.slow
@pytest.mark.parametrize("name", INSTALLED)
def test_without_any_feature_the_rest_works(name: str, tmp_path: Path) -> None:
    check_without(name, tmp_path)


def check_without(name: str, folder: Path, *options: str) -> None:
    """Remove a feature and all that need it from a copy of the tree; use the copy, and call pytest with options."""
    gone = list_dependents(name)
    for part in COPIED:
        copy(ROOT / part, folder / part)
    for each in gone:
        remove(each, folder)
    remove_tests(gone, folder)
    imports = "import pkgutil, lockstep\nfor each in pkgutil.walk_packages(lockstep.__path__, 'lockstep.'):\n"
    run(folder, "-c", f"{imports}    if '__main__' not in each.name: __import__(each.name)")
    shown = run(folder, "-m", "lockstep.cli", "--help")
    assert "status" in shown
    run(folder, "-c", "import definitions; definitions.defs.get_repository_def().load_all_definitions()")
    (folder / "conftest.py").write_text(FEW_EXAMPLES)
    tests = [f"tests/unit/{each}" for each in CORE_TESTS]
    run(
        folder,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=few",
        *options,
        "-m",
        "not slow and not broker and not spark",
        *tests,
    )


def copy(source: Path, target: Path) -> None:
    """Copy a file or folder without artifacts of Python and Rust."""
    if source.is_file():
        shutil.copy(source, target)
    else:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "target", ".mypy_cache"))


def remove(name: str, root: Path) -> None:
    """Remove a feature: its folder, the folder of its tests, its line and its wiring."""
    shutil.rmtree(root / "platform" / "lockstep" / "features" / name)
    shutil.rmtree(root / "tests" / "features" / name)
    edit(root / "platform" / "lockstep" / "feature.py", rf'    "{name}",\n', "")
    if name in WIRING:
        files, names = WIRING[name]
        for file in files.split():
            (root / file).unlink()
        unwire(root / "definitions.py", names)


def remove_tests(gone: set[str], root: Path) -> None:
    """Remove the tests that import features, directly or through other modules of the tests."""
    texts = {path: path.read_text() for path in (root / "tests").rglob("*.py")}
    wanted = "|".join(gone)
    patterns = [rf"lockstep\.features(?: import .*\b|\.)(?:{wanted})\b"]
    while patterns:
        pattern = re.compile("|".join(patterns))
        found = [path for path, text in texts.items() if pattern.search(text)]
        for path in found:
            path.unlink()
            del texts[path]
        patterns = [find_imports_of(path.relative_to(root)) for path in found]


def find_imports_of(path: Path) -> str:
    """Return the pattern of an import of a module of the tests."""
    package = re.escape(".".join(path.parent.parts))
    return rf"from {package}(?:\.{path.stem}\b| import [^\n]*\b{path.stem}\b)"


def unwire(path: Path, names: tuple[str, ...]) -> None:
    """Remove names from definitions.py: their imports, and the lines or entries that use them."""
    for name in names:
        edit(path, rf"from [\w.]+ import [^\n]*\b{name}\b[^\n]*\n", "")
        edit(path, rf"\n[^\n]*\b{name}\(STREAMS[^\n]*", "")
        edit(path, rf"\n *\*{name}\([^\n]*", "")
        edit(path, rf"\n[^\n]*\*\({name}\([^\n]*", "")
        edit(path, rf"\[{name}\([^\]]*\]", "[]")
        edit(path, rf"\n *{name},(?=\n)|\b{name}, |, {name}\b", "")


def edit(path: Path, pattern: str, replacement: str) -> None:
    path.write_text(re.sub(pattern, replacement, path.read_text()))


def run(folder: Path, *arguments: str) -> str:
    """Run Python in the copy. Raises AssertionError with its output if it fails."""
    environment = os.environ | {"PYTHONPATH": f"{folder / 'platform'}:{folder}"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
