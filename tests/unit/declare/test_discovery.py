"""Code that is named by a folder, a file or a module is found, or refused with what to give instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.declare.discovery import load_streams
from lockstep.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("code", ["assets", "./assets"])
def test_the_folder_assets_itself_is_refused_and_the_one_that_holds_it_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="is a folder without assets/") as refused:
        load_streams(code)
    assert refused.value.next_step == f"give the folder that holds assets/: {tmp_path}"


def test_a_folder_without_assets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a folder without assets/") as refused:
        load_streams(str(tmp_path))
    assert refused.value.next_step == "give the folder that holds assets/, a file in it, or the name of a module"


def test_code_that_is_nowhere_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no code at 'no\.such\.module'"):
        load_streams("no.such.module")
