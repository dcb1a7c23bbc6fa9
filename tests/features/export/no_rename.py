"""Exports to local files with the steps of an object store, which has neither renames nor folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.features.export import dataset, publish
from lockstep.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def use_no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish and withdraw hours as in an object store."""
    create_whole = LocalStorage.create_whole
    copy = LocalStorage.copy

    def create(self: LocalStorage, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_whole(self, path, content)

    def copy_into(self: LocalStorage, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(self, path, target)

    monkeypatch.setattr(LocalStorage, "create_whole", create)
    monkeypatch.setattr(LocalStorage, "copy", copy_into)
    for module in (dataset, publish):
        monkeypatch.setattr(module, "is_in_object_store", lambda _: True)
