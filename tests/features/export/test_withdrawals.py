"""Two withdrawals of one hour in an object store: a later publication of the hour is never touched.

The steps are those of a store without a rename, on files of this machine.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.features.export import publish
from lockstep.features.export.publish import make_staging_folder, publish_folder, take_back_folder
from lockstep.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAST = "_manifest.json"
CALLS = ("read", "list_names", "get_status", "create_whole", "delete", "delete_files", "delete_folder")


class Waits(Exception):
    """A withdrawal waits for another."""


@pytest.fixture(autouse=True)
def _no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: float) -> None:
        raise Waits

    create_whole = LocalStorage.create_whole

    def create(self: LocalStorage, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)  # an object store has no folders
        create_whole(self, path, content)

    monkeypatch.setattr(LocalStorage, "create_whole", create)
    monkeypatch.setattr(publish, "is_in_object_store", lambda _: True)
    monkeypatch.setattr("lockstep.features.export.publish.time.sleep", wait)


def publish_hour(folder: Path, content: str) -> bool:
    """Publish an hour of one file."""
    staged = make_staging_folder(folder, "hour")
    staged.mkdir(parents=True)
    for name in ("rows.parquet", LAST):
        (staged / name).write_text(content)
    (folder / "hour").mkdir(exist_ok=True)
    return publish_folder(staged, folder / "hour", LAST)


def withdraw(folder: Path) -> None:
    """Withdraw the hour of the old content."""
    manifest = folder / "hour" / LAST
    take_back_folder(folder, folder / "hour", LAST, lambda: manifest.exists() and manifest.read_text() == "old")


def read_hour(folder: Path) -> dict[str, str]:
    """The files of a whole hour; empty for a withdrawn hour."""
    hour = folder / "hour"
    names = [path.name for path in hour.iterdir()] if hour.exists() else []
    return {name: (hour / name).read_text() for name in names if name != publish.CLAIM}


def run_interrupted(monkeypatch: pytest.MonkeyPatch, step: int, folder: Path, act: Callable[[], None]) -> bool:
    """Withdraw, and act once before a call of the storage; returns whether there was such a call."""
    calls = list[str]()

    def make(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            calls.append(name)
            if len(calls) == step + 1:
                act()
            return real(*given)

        return called

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(LocalStorage, name, make(name, getattr(LocalStorage, name)))
        withdraw(folder)
    return len(calls) > step


def test_a_withdrawal_between_any_steps_of_another_leaves_the_later_hour_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process withdraws the hour and publishes it again, unless it has to wait."""
    published = list[bool]()

    def act() -> None:
        try:
            withdraw(folder)
        except Waits:
            published.append(False)
        else:
            published.append(publish_hour(folder, "new"))

    for step in count():
        folder = tmp_path / str(step)
        assert publish_hour(folder, "old")
        if not run_interrupted(monkeypatch, step, folder, act):
            break
        whole = {"rows.parquet": "new", LAST: "new"} if published[-1] else {}
        assert read_hour(folder) == whole, step
        assert [path.name for path in (folder / publish.STAGING).iterdir()] == []
        assert publish_hour(folder, "newer") is (not whole)
    assert set(published) == {True, False}


def test_a_withdrawal_that_was_killed_after_its_mark_is_continued_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    assert publish_hour(tmp_path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            withdraw(tmp_path)
    with pytest.raises(Waits):
        withdraw(tmp_path)
    assert read_hour(tmp_path)[LAST] == "old"
    monkeypatch.setattr(publish, "WITHDRAWING_SECONDS", -1.0)
    withdraw(tmp_path)
    assert read_hour(tmp_path) == {}
    assert publish_hour(tmp_path, "new")
