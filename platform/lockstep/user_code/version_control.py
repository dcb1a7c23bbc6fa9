"""The commit of a project's folder, if git manages it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lockstep.time_limit import run_command

SECONDS_MAX = 5.0
"""For each of two commands; a large repository on a slow disk is left unknown."""


def find_commit(folder: Path, names: Iterable[str]) -> tuple[str, bool]:
    """The commit that is checked out, and whether one of some files differs from it; an empty text if unknown.

    Args:
        folder: The project's folder.
        names: The files and folders to compare, from there.
    """
    commit = _ask_git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return "", False
    changes = _ask_git(folder, "status", "--porcelain", "--untracked-files=all", "--", *names)
    return ("", False) if changes is None else (commit, bool(changes))


def _ask_git(folder: Path, *arguments: str) -> str | None:
    """The output of a command; None without git, without a repository, and if it takes too long."""
    # Without locks: a status must not fail a commit of the user at the same moment.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        said = run_command(command, "git", SECONDS_MAX)
    except (OSError, UnicodeDecodeError):  # a time-out is an OSError
        return None
    return said.stdout.strip() if said.returncode == 0 else None
