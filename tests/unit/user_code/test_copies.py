"""A copy is whole or absent, never changes, and stays while a process imports from it."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.user_code import copies
from lockstep.user_code.copies import DRAFT, KEPT, CopyChanged, hold_copy, make_copy, prune_copies
from lockstep.user_code.files import CodeFiles, digest_contents, read_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _release_copies() -> Iterator[None]:
    yield
    while copies._HELD:  # noqa: SLF001  # as at the end of a process
        os.close(copies._HELD.popitem()[1])  # noqa: SLF001


def make_code(text: str) -> CodeFiles:
    contents = {"definitions.py": text.encode(), "assets/orders.py": b"stream = 1\n", "assets/a/b.txt": b""}
    return CodeFiles(contents, digest_contents(contents))


def list_names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "copies").iterdir())


def test_a_copy_has_the_bytes_of_its_digest_and_is_made_once(tmp_path: Path) -> None:
    code = make_code("one")
    copy = make_copy(tmp_path, code)
    assert read_code(copy).contents == code.contents
    assert copy.name == code.digest
    assert (copy / "definitions.py").stat().st_mode & 0o777 == 0o444
    inode = copy.stat().st_ino
    (copy / "assets" / "__pycache__").mkdir()  # Python writes there
    assert make_copy(tmp_path, code).stat().st_ino == inode
    assert list_names(tmp_path) == [code.digest]


def _change(copy: Path) -> None:
    (copy / "definitions.py").chmod(0o644)
    (copy / "definitions.py").write_text("two")


@pytest.mark.parametrize(
    "change",
    [
        _change,
        lambda copy: (copy / "assets" / "orders.py").unlink(),
        lambda copy: (copy / copies.NAMES).unlink(),
    ],
)
def test_a_copy_that_was_changed_is_refused(tmp_path: Path, change: Callable[[Path], object]) -> None:
    code = make_code("one")
    change(make_copy(tmp_path, code))
    with pytest.raises(CopyChanged):
        hold_copy(tmp_path, code.digest)
    with pytest.raises(CopyChanged):
        make_copy(tmp_path, code)


def test_files_that_code_writes_next_to_itself_do_not_count(tmp_path: Path) -> None:
    code = make_code("one")
    copy = make_copy(tmp_path, code)
    for name in ("assets/cache.sqlite-wal", "assets/more.py"):
        (copy / name).write_text("")
    (copy / "data.py").mkdir()
    assert hold_copy(tmp_path, code.digest) == copy
    assert make_copy(tmp_path, code) == copy


def test_a_copy_is_as_readable_as_the_code(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "assets").mkdir(parents=True)
    for name, mode in (("definitions.py", 0o644), ("assets/key.pem", 0o600), ("assets/decode.py", 0o750)):
        (project / name).write_text("")
        (project / name).chmod(mode)
    copy = make_copy(tmp_path / "code", read_code(project))
    modes = [stat.S_IMODE((copy / name).stat().st_mode) for name in ("definitions.py", "assets/key.pem")]
    assert modes == [0o444, 0o400]
    assert stat.S_IMODE((copy / "assets" / "decode.py").stat().st_mode) == 0o550


def test_many_at_once_make_one_copy(tmp_path: Path) -> None:
    code = make_code("one")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make_copy(tmp_path, code), range(16)))
    assert set(made) == {tmp_path / "copies" / code.digest}
    assert list_names(tmp_path) == [code.digest]


def make_copy_until(root: Path, code: CodeFiles, steps: int) -> int:
    """Make a copy in a process that is killed before a system call with this number; return its exit code."""
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

    for name in ("open", "fsync", "fchmod", "close", "utime"):
        setattr(os, name, count(getattr(os, name)))
    for name in ("mkdir", "rename", "open"):
        setattr(Path, name, count(getattr(Path, name)))
    make_copy(root, code)
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_kill_at_any_step_leaves_no_half_copy(tmp_path: Path) -> None:
    code = make_code("one")
    for step in itertools.count():
        root = tmp_path / str(step)
        ended = make_copy_until(root, code, step)
        assert read_code(make_copy(root, code)).contents == code.contents
        assert list_names(root) == [code.digest], "the draft of the killed process is deleted"
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert step > 20


HOLDING = """
import sys
from pathlib import Path
from lockstep.user_code.copies import hold_copy
print(hold_copy(Path(sys.argv[1]), sys.argv[2]), flush=True)
sys.stdin.read()
"""


def test_unused_copies_are_deleted_but_those_of_processes_and_releases(tmp_path: Path) -> None:
    codes = [make_code(str(number)) for number in range(KEPT + 4)]
    for age, code in enumerate(codes):
        os.utime(make_copy(tmp_path, code), (age, age))
    used = codes[0].digest
    named = codes[1].digest
    oldest = codes[2].digest
    command = [sys.executable, "-c", textwrap.dedent(HOLDING), str(tmp_path), used]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert used.encode() in holder.stdout.readline()
        while copies._HELD:  # noqa: SLF001
            os.close(copies._HELD.popitem()[1])  # noqa: SLF001
        os.utime(tmp_path / "copies" / used, (0, 0))
        prune_copies(tmp_path, {named})
        left = list_names(tmp_path)
        assert {used, named} < set(left)
        assert oldest not in left
        holder.kill()
    prune_copies(tmp_path, {named})
    assert len([name for name in list_names(tmp_path) if name != named]) == KEPT
    assert used not in list_names(tmp_path), "a kill ends the lock"


def test_a_draft_of_a_living_process_stays(tmp_path: Path) -> None:
    make_copy(tmp_path, make_code("one"))
    with copies._draft(tmp_path / "copies") as draft:  # noqa: SLF001
        prune_copies(tmp_path, set())
        assert draft.is_dir()
    assert not [name for name in list_names(tmp_path) if name.startswith(DRAFT)]
