"""Ctrl-C after each item of long work: the stream stays intact, and the next call completes the work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstep.progress import send_progress
from tests.integration.cli.conftest import Platform
from tests.support.feed import session, update
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from typer.testing import Result

INTERRUPTIONS_MAX = 40
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PARTITIONS = 2
Work = Callable[[Platform], tuple[str, ...]]
"""Prepares a stream and returns the command that does the work."""


class Interruption:
    """Raises Ctrl-C after a number of items of work."""

    def __init__(self, after: int) -> None:
        self.left = after

    def note(self, _doing: str, _done: int, _total: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def call_interrupted(platform: Platform, command: tuple[str, ...], after: int) -> tuple[Result, bool]:
    """Return the command's result and whether it was interrupted."""
    interruption = Interruption(after)
    with send_progress(interruption.note):
        said = platform.call(*command)
    return said, interruption.left <= 0


def make_stream(platform: Platform) -> None:
    """Commit three batches of two topics."""
    topics = {name: platform.feed.create(name, partitions=PARTITIONS) for name in ("first", "second")}
    for batch in range(3):
        for name, topic in topics.items():
            for partition in range(PARTITIONS):
                messages = session(3) if batch == 0 else [update(4 + batch, a=1)]
                platform.feed.send(topic, messages, key=f"{name}-{partition}", partition=partition)
        platform.runs.run()


def in_another_root(platform: Platform) -> Platform:
    root = platform.folder / "other"
    return replace(platform, environment=platform.environment | {"LOCKSTEP_TABLE_ROOT": str(root)})


def call(platform: Platform, *command: str) -> None:
    said = platform.call(*command)
    assert said.exit_code == 0, said.output


def prepare_backup(platform: Platform) -> tuple[str, ...]:
    return "backup", "adding", str(platform.folder / "backup")


def prepare_restore(platform: Platform) -> tuple[str, ...]:
    call(platform, "backup", "adding", str(platform.folder / "backup"))
    return "restore", "adding", str(platform.folder / "backup"), "--yes"


def prepare_savepoint(platform: Platform) -> tuple[str, ...]:
    call(platform, "savepoint", "make", "adding", "kept")
    return "savepoint", "export", "adding", "kept", str(platform.folder / "export")


def prepare_import(platform: Platform) -> tuple[str, ...]:
    call(platform, *prepare_savepoint(platform))
    return "savepoint", "import", "adding", str(platform.folder / "export"), "--yes"


def prepare_compaction(platform: Platform) -> tuple[str, ...]:
    call(platform, "close", "adding")
    return "compact", "adding"


def prepare_rebuild(platform: Platform) -> tuple[str, ...]:
    shutil.rmtree(platform.runs.folders.state)
    return "rebuild", "adding", "--yes"


def prepare_erasure(_: Platform) -> tuple[str, ...]:
    return "erase", "adding", "--session", "first-0", "--drop-state", "--yes"


IN_PLACE: dict[str, Work] = {
    "backup": prepare_backup,
    "savepoint export": prepare_savepoint,
    "compact": prepare_compaction,
    "rebuild": prepare_rebuild,
    "erase": prepare_erasure,
}
ELSEWHERE: dict[str, Work] = {"restore": prepare_restore, "savepoint import": prepare_import}


@pytest.mark.parametrize("name", keep_usual(("compact", "erase", "restore"), [*IN_PLACE, *ELSEWHERE]))
def test_the_next_call_completes_work_that_was_interrupted(fresh: Platform, name: str) -> None:
    make_stream(fresh)
    command = (IN_PLACE | ELSEWHERE)[name](fresh)
    working = in_another_root(fresh) if name in ELSEWHERE else fresh
    interrupted = 0
    for after in range(1, INTERRUPTIONS_MAX):
        said, was_interrupted = call_interrupted(working, command, after)
        if not was_interrupted:
            break
        interrupted += 1
        assert (said.exit_code, "Traceback" in said.output) == (INTERRUPTED, False)
    assert (interrupted > 0, said.exit_code) == (True, 0), said.output
    if name in IN_PLACE:
        fresh.runs.run()
    assert working.call("verify", "adding").exit_code == 0
