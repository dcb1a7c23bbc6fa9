"""The ratchet of style, in repositories that the tests make: no file gets worse, moved files keep their counts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "style_ratchet.py"
GIT = shutil.which("git") or "git"
PLAIN = '"""Return the sum."""\n\ntotal = 1\n'
WORSE = {
    "a habit": '"""What it gives comes later."""\n\ntotal = 1\n',
    "a parallel assignment": '"""Return the sum."""\n\ntotal, count = 1, 2\n',
    "a nested comprehension": '"""Return the sum."""\n\ntotal = [[y for y in range(x)] for x in range(3)]\n',
    "two loops in one": '"""Return the sum."""\n\ntotal = [y for x in range(3) for y in range(x)]\n',
}
DENSE = WORSE["a parallel assignment"]


class Repository:
    """A git repository with the tool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir()
        shutil.copy(TOOL, folder / "tools")
        self.git("init", "--quiet")
        self.write("module.py", PLAIN)
        self.commit("The first commit")
        assert self.call("--write") == (0, [])

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([GIT, *who, *arguments], cwd=self.folder, check=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.git("add", name)

    def commit(self, subject: str) -> None:
        self.git("commit", "--quiet", "--allow-empty", "--all", "--message", subject)

    def call(self, *arguments: str) -> tuple[int, list[str]]:
        """Return exit code and lines of the tool."""
        command = [sys.executable, "tools/style_ratchet.py", *arguments]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert ended.stderr == ""
        lines = ended.stdout.splitlines()
        assert (lines[-1:] and lines[-1].startswith("next: ")) or ended.returncode == 0
        return ended.returncode, lines[:-1]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.parametrize("text", WORSE.values(), ids=WORSE)
@pytest.mark.parametrize("name", ["module.py", "new.py"])
def test_a_file_that_got_worse_and_a_new_one_are_named(repository: Repository, name: str, text: str) -> None:
    assert repository.call() == (0, [])
    repository.write(name, text)
    code, lines = repository.call()
    assert code == 1
    assert all(line.startswith(f"{name}: ") for line in lines)


def test_the_baseline_is_lowered_and_never_raised(repository: Repository) -> None:
    repository.write("module.py", DENSE)
    code, lines = repository.call("--write")
    assert (code, lines) == (1, ["all files: parallel assignment: 1, allowed 0"])
    repository.write("module.py", PLAIN)
    assert repository.call("--write") == (0, [])


def test_a_moved_file_keeps_its_counts(repository: Repository) -> None:
    shutil.rmtree(repository.folder / ".git")
    (repository.folder / "tools" / "style_baseline.json").unlink()
    repository.git("init", "--quiet")
    repository.write("module.py", DENSE)
    repository.commit("Again")
    assert repository.call("--write") == (0, [])
    repository.git("mv", "--force", "module.py", "moved.py")
    assert repository.call()[0] == 1
    assert repository.call("--write") == (0, [])
    assert repository.call() == (0, [])
    repository.write("third.py", DENSE)
    assert repository.call("--write")[0] == 1


def test_code_in_a_document_is_not_judged(repository: Repository) -> None:
    repository.write("page.md", "Return the sum.\n\n```\nwhat it gives\n```\nAnd `what it says`.\n")
    assert repository.call() == (0, [])


def test_a_long_subject_is_named(repository: Repository) -> None:
    repository.commit("x" * 72)
    assert repository.call() == (0, [])
    repository.commit("x" * 73)
    code, lines = repository.call()
    assert (code, len(lines), lines[0].endswith("its subject has 73 characters, allowed 72")) == (1, 1, True)
