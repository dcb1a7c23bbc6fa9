"""Two withdrawals of one hour in an object store: a later publication of the hour is never changed.

The steps are the steps of a store without renames, on local files.
"""

from __future__ import annotations

import time
from itertools import count, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.features.export import publish
from lockstep.features.export.publish import find_suffix, make_staging_folder, publish_folder, take_back_folder
from lockstep.storage import LocalStorage
from tests.features.export.no_rename import use_no_rename

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAST = "_manifest.json"
ROWS = "rows"
WHOLE = {ROWS: "new", LAST: "new"}
CALLS = ("read", "list_names", "get_status", "create_whole", "delete", "delete_files", "delete_folder")


STEPS_MAX = 13
"""More than the storage calls of a withdrawal."""


class Waits(Exception):
    """A withdrawal waits for another withdrawal."""


@pytest.fixture(autouse=True)
def _no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: float) -> None:
        raise Waits

    use_no_rename(monkeypatch)
    monkeypatch.setattr(publish, "time", SimpleNamespace(time=time.time, sleep=wait))  # library threads sleep too


def publish_hour(folder: Path, content: str) -> bool:
    """Publish an hour of one file."""
    staged = make_staging_folder(folder, "hour")
    staged.mkdir(parents=True)
    for name in (f"00000-{find_suffix(staged.name)}.parquet", LAST):
        (staged / name).write_text(content)
    (folder / "hour").mkdir(exist_ok=True)
    return publish_folder(staged, folder / "hour", LAST)


def withdraw(folder: Path) -> None:
    """Withdraw the hour if it has the old content."""
    manifest = folder / "hour" / LAST
    take_back_folder(folder, folder / "hour", LAST, lambda: manifest.exists() and manifest.read_text() == "old")


def read_hour(folder: Path) -> dict[str, str]:
    """Return the manifest and the data file of a complete hour, nothing for a withdrawn hour."""
    files = [path for path in (folder / "hour").glob("*") if path.name != publish.CLAIM]
    found = {path.name if path.name == LAST else ROWS: path.read_text() for path in files}
    assert len(found) == len(files)
    return found


def run_interrupted(monkeypatch: pytest.MonkeyPatch, step: int, folder: Path, act: Callable[[], None]) -> str | None:
    """Withdraw, and act once before a storage call. Return the call, or None if it was not reached."""
    calls = list[str]()

    def make(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(storage: LocalStorage, path: Any, *given: Any) -> Any:
            calls.append(f"{name} {getattr(path, 'name', '')}")
            if len(calls) == step + 1:
                act()
            return real(storage, path, *given)

        return called

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(LocalStorage, name, make(name, getattr(LocalStorage, name)))
        withdraw(folder)
    return calls[step] if len(calls) > step else None


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
        whole = WHOLE if published[-1] else {}
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


@pytest.mark.parametrize("pauses", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_withdrawal_that_pauses_until_its_mark_is_old_deletes_no_row_of_a_later_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: int
) -> None:
    """Others continue it, may pause as well, and publish the hour; then it resumes."""
    monkeypatch.setattr(publish, "WITHDRAWING_SECONDS", -1.0)
    monkeypatch.setattr(publish, "time", SimpleNamespace(time=time.time, sleep=lambda _: None))
    paused_at = set[str]()

    def act(folder: Path, steps: tuple[int, ...]) -> None:
        if not steps:
            withdraw(folder)
            assert publish_hour(folder, "new")
            return
        with monkeypatch.context() as patch:
            call = run_interrupted(patch, steps[0], folder, lambda: act(folder, steps[1:]))
        paused_at.add(call or "")
        if call is None:
            act(folder, steps[1:])

    for steps in product(range(STEPS_MAX), repeat=pauses):
        folder = tmp_path / "-".join(map(str, steps))
        assert publish_hour(folder, "old")
        act(folder, steps)
        assert read_hour(folder)[ROWS] == "new", steps
    assert "" in paused_at
