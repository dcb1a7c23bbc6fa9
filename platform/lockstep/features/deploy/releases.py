"""Releases and the choice of the current one, as small files that are created once and never changed.

    <code root>/releases/<name>.json       a name for a copy of code
    <code root>/switches/<number>.json     the release that is current from then on

The switch with the highest number counts. A switch is created under the next number after the newest switch that its
command has seen: of two commands at the same time one creates it, and the other is refused. A kill leaves no lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.errors import LockstepError
from lockstep.model.code_version import CodeVersion
from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.user_code.copies import hold_copy

RELEASES = "releases"
SWITCHES = "switches"
DIGITS = 8


class ReleaseUnusable(LockstepError):
    """A release cannot be made, or cannot become current.

    Attributes:
        release: Its name.
    """

    def __init__(self, release: str, problem: str, next_step: str) -> None:
        super().__init__(f"release {release}: {problem}", next_step=next_step)
        self.release = release


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A named copy of code.

    Attributes:
        name: Its name.
        digest: Digest of the code, and name of its copy.
        commit: Commit of version control; empty if unknown.
        is_modified: Whether a file differed from this commit.
        made_at: Time at which it was named (UTC).
        made_by: The user.
    """

    name: str
    digest: str
    commit: str
    is_modified: bool
    made_at: datetime
    made_by: str

    @property
    def version(self) -> CodeVersion:
        """The version of its code."""
        return CodeVersion(digest=self.digest, release=self.name, commit=self.commit, is_modified=self.is_modified)


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of the current release.

    Attributes:
        number: Its number.
        release: Name of the release; empty for the working folder.
        at: Time of the choice (UTC).
        by: The user.
    """

    number: int
    release: str
    at: datetime
    by: str


NO_SWITCH = Switch(number=0, release="", at=datetime.min.replace(tzinfo=UTC), by="")
"""Before the first release, runs import the working folder."""


def list_switches(root: Path) -> tuple[Switch, ...]:
    """The choices, oldest first; `NO_SWITCH` is the first.

    Args:
        root: The code root.
    """
    files = find_storage(root).find_files(root / SWITCHES, "*.json")
    return (NO_SWITCH, *(decode_json(find_storage(root).read(path), Switch) for path in files))


def read_current(root: Path) -> Switch:
    """The newest choice."""
    return list_switches(root)[-1]


def choose_release(root: Path, seen: Switch, release: str, who: str) -> Switch:
    """Make a release current, if the newest choice is still the choice that was seen.

    Raises:
        ReleaseUnusable: Another command has chosen a release in between.
    """
    chosen = Switch(number=seen.number + 1, release=release, at=datetime.now(UTC), by=who)
    path = root / SWITCHES / f"{chosen.number:0{DIGITS}}.json"
    try:
        _create(path, chosen)
    except FileExistsError:
        now = read_current(root)
        problem = f"{describe_choice(now.release)} became current meanwhile, by {now.by}"
        raise ReleaseUnusable(release, problem, "see lockstep deploy --list; then repeat the command") from None
    return chosen


def describe_choice(release: str) -> str:
    """A release, or the working folder, for a sentence."""
    return f"release {release}" if release else "the working folder"


def name_release(root: Path, name: str, version: CodeVersion, who: str) -> Release:
    """Name a copy; the same name for the same code changes nothing.

    Raises:
        ReleaseUnusable: Another copy has this name.
    """
    release = Release(
        name=name,
        digest=version.digest,
        commit=version.commit,
        is_modified=version.is_modified,
        made_at=datetime.now(UTC),
        made_by=who,
    )
    try:
        _create(root / RELEASES / f"{name}.json", release)
    except FileExistsError:
        # Of two deployments at once one has created it; the same code is no conflict.
        earlier = read_release(root, name)
        if earlier.digest == version.digest:
            return earlier
        problem = f"has the code {earlier.digest[:12]} since {earlier.made_at:%Y-%m-%d %H:%M} UTC ({earlier.made_by})"
        raise ReleaseUnusable(name, problem, "choose another name: a release never changes") from None
    return release


def read_release(root: Path, name: str) -> Release:
    """A release.

    Raises:
        ReleaseUnusable: There is none of this name.
    """
    path = root / RELEASES / f"{name}.json"
    try:
        return decode_json(find_storage(path).read(path), Release)
    except FileNotFoundError:
        problem = f"{root} has no release of this name"
        raise ReleaseUnusable(name, problem, "lockstep deploy --list names the releases") from None


def list_releases(root: Path) -> tuple[Release, ...]:
    """All releases, oldest first."""
    files = find_storage(root).find_files(root / RELEASES, "*.json")
    releases = (decode_json(find_storage(root).read(path), Release) for path in files)
    return tuple(sorted(releases, key=lambda release: (release.made_at, release.name)))


def open_release(root: Path, name: str) -> tuple[Path, CodeVersion]:
    """The copy of a release, held until this process ends.

    Raises:
        ReleaseUnusable: It is missing.
        CopyChanged: Its files have changed.
    """
    release = read_release(root, name)
    folder = hold_copy(root, release.digest)
    if folder is None:
        step = f"check out its commit {release.commit}".rstrip() + f", then lockstep deploy {name}"
        raise ReleaseUnusable(name, f"its copy {release.digest} is missing in {root}", step)
    return folder, release.version


def find_current_code(root: Path) -> tuple[Path, CodeVersion] | None:
    """The copy of the current release; None if runs import the working folder.

    Raises:
        ReleaseUnusable, CopyChanged: As `open_release`.
    """
    current = read_current(root)
    return open_release(root, current.release) if current.release else None


def list_named_digests(root: Path) -> Iterable[str]:
    """Digests of the copies that releases name: they are never deleted."""
    return [release.digest for release in list_releases(root)]


def _create(path: Path, content: msgspec.Struct) -> None:
    find_storage(path).make_folder(path.parent)
    find_storage(path).create_whole(path, msgspec.json.encode(content))
