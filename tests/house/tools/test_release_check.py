"""A release is checked as users install it: wheel and sdist are equal, and a first stream runs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import release_check

ROOT = Path(__file__).parents[3]


def make_wheel(path: Path, **contents: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return path


def test_a_file_that_the_sdist_lacks_or_changes_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "a.whl", kept="1", lost="2", changed="3")
    other = make_wheel(tmp_path / "b.whl", kept="1", changed="4", added="5")
    release_check.require_same_files(wheel, wheel)
    with pytest.raises(release_check.CheckFailedError, match=r"in: added, changed, lost$"):
        release_check.require_same_files(wheel, other)


def test_a_command_that_fails_is_shown_with_its_output(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "print('the reason'); raise SystemExit(4)"]
    with pytest.raises(release_check.CheckFailedError, match=r"(?s)ended with 4:\nthe reason"):
        release_check.run(failing, tmp_path)


def test_every_module_of_public_names_is_imported() -> None:
    modules = {f"lockstep{part}" for part in release_check.PUBLIC}
    documented = (ROOT / "docs" / "reference.md").read_text()
    assert {module for module in modules if f"## {module}\n" not in documented} <= {
        "lockstep.dagster",
        "lockstep.extensions",
    }


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_release_of_this_checkout_is_good() -> None:
    said = subprocess.run(
        [sys.executable, ROOT / "tools" / "release_check.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_wheel_of_the_extension_folds_where_there_is_no_rust() -> None:
    said = subprocess.run(
        [sys.executable, ROOT / "tools" / "wheels.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert ": proven without Rust, 101 rows with" in said.stdout
