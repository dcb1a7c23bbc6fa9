"""The scratch folders of a load test are deleted; folders of other streams' tests stay at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from lockstep.features.rehearsal import load_test
from lockstep.features.rehearsal.load_test import FOLDER, delete_folders
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import Settings
from lockstep.storage import LocalStorage
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from pathlib import Path


class Racing(LocalStorage):
    """A test of another stream starts immediately before the deletion of the common folder."""

    @override
    def delete_folder(self, folder: Path) -> None:
        self._begin(folder)
        super().delete_folder(folder)

    @override
    def delete_empty_folder(self, folder: Path) -> None:
        self._begin(folder)
        super().delete_empty_folder(folder)

    def _begin(self, folder: Path) -> None:
        if folder.name == FOLDER:
            (folder / "other" / "stage-1").mkdir(parents=True)


def make_handle(folder: Path) -> StreamHandle:
    settings = Settings(table_root=folder / "tables", local_root=folder / "local")
    return StreamHandle(replace(adding("t"), name="books"), settings)


def test_a_test_of_another_stream_that_begins_meanwhile_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_test, "find_storage", lambda _: Racing())
    (tmp_path / "tables" / FOLDER / "books" / "stage-1").mkdir(parents=True)
    delete_folders(make_handle(tmp_path))
    assert [path.name for path in (tmp_path / "tables" / FOLDER).iterdir()] == ["other"]


def test_streams_whose_names_begin_alike_keep_their_folders(tmp_path: Path) -> None:
    for name in ("books", "books_v2", "book"):
        (tmp_path / "tables" / FOLDER / name / "stage-1").mkdir(parents=True)
    delete_folders(make_handle(tmp_path))
    assert sorted(path.name for path in (tmp_path / "tables" / FOLDER).iterdir()) == ["book", "books_v2"]
    for name in ("book", "books_v2"):
        delete_folders(StreamHandle(replace(adding("t"), name=name), make_handle(tmp_path).settings))
    assert not (tmp_path / "tables" / FOLDER).exists()
