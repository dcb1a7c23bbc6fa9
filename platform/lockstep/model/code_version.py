"""The version of the user's code that a process runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

DIGEST_SHOWN = 12
COMMIT_SHOWN = 10


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The version of the user's code.

    Attributes:
        digest: SHA-256 of the names and bytes of its files.
        release: Name of the release; empty for a copy of the working folder.
        commit: Commit of version control at the time of the copy; empty if unknown.
        is_modified: Whether a file differed from this commit.
    """

    digest: str
    release: str = ""
    commit: str = ""
    is_modified: bool = False

    def __str__(self) -> str:
        commit = self.commit[:COMMIT_SHOWN]
        if self.release:
            place = f"release {self.release}"
        elif not commit:
            place = "working folder"
        else:
            place = f"working folder, commit {commit}{', modified' if self.is_modified else ''}"
        return f"{place} (code {self.digest[:DIGEST_SHOWN]})"


_IMPORTED = dict[Path, CodeVersion]()
"""The copies that this process imports from. State of the module, as the import system is."""


def remember_code(folder: Path, version: CodeVersion) -> None:
    """Remember that this process imports modules from an immutable copy."""
    _IMPORTED[folder] = version


def list_code_folders() -> tuple[Path, ...]:
    """The copies that this process imports from."""
    return tuple(_IMPORTED)


def find_code(folders: tuple[Path, ...]) -> CodeVersion | None:
    """The version of the code in import roots; None if none is a copy: its files may change under the run."""
    return next((_IMPORTED[folder] for folder in folders if folder in _IMPORTED), None)
