"""The folder from which executors import the module of a stream."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from lockstep.engine.driver.import_roots import find_module_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("file", ["plants.py", "plants/__init__.py", "plants/boilers.py", "plants/boilers/__init__.py"])
def test_a_module_and_a_package_have_the_folder_above_their_first_name(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors import `assets_of_roots.plants` from it."""
    path = tmp_path / "assets_of_roots" / file
    path.parent.mkdir(parents=True)
    path.touch()
    name = ".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).relative_to(tmp_path).parts)
    monkeypatch.syspath_prepend(tmp_path)
    for known in [each for each in sys.modules if each.startswith("assets_of_roots")]:
        monkeypatch.delitem(sys.modules, known)
    importlib.import_module(name)
    assert find_module_root(name) == (tmp_path,)
