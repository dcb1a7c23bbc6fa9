"""A user's project: the files of this repository that belong to it, at first and with each new release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path

import msgspec

from lockstep import __version__
from lockstep.declare.discovery import PACKAGE
from lockstep.errors import LockstepError

FILES = Path(__file__).parent / "project_files"
"""Files of a new project that are the user's from then on."""
TEMPLATE = Path(__file__).parents[1] / "template"
"""In an installed package; a checkout is its own template."""
CHECKOUT = Path(__file__).parents[3]
DEFINITIONS = "definitions.py"
SETTINGS = "lockstep.toml"
DAGSTER_HOME = "dagster_home"
STARTERS = {
    "pyproject.toml": "pyproject.toml.txt",
    ".gitignore": "gitignore.txt",
    "assets/readings.py": "readings.py.txt",
    "tests/test_readings.py": "test_readings.py.txt",
    "send_readings.py": "send_readings.py.txt",
}
"""Files of a new project, each with its template."""
REPOSITORY = ("pyproject.toml", ".gitignore")
"""Of these, the files that a repository may have before: its own stay."""
_STREAMS_IMPORTED = re.compile(r"(?:^from assets\..*\n)+", re.MULTILINE)
_STREAMS_NAMED = re.compile(r"^(STREAMS: .*?) = \(.*\)$", re.MULTILINE)
_LOCATION_NAMED = re.compile(r"(location_name: ).*")


BEFORE = ".before"
"""Suffix of a file that an update replaced; with a number if an earlier update has left one."""
WIRING = ("jobs", "sensors")
"""Folders whose modules follow the release; all other files of a project are the user's."""


class CreatedProject(msgspec.Struct, frozen=True):
    """The files that were written.

    Attributes:
        folder: The project.
        files: Its files, from the folder.
        kept: Files of `REPOSITORY` that the folder had before; nothing was written to them.
        dagster_home: The value of `DAGSTER_HOME`.
    """

    folder: str
    files: tuple[str, ...]
    kept: tuple[str, ...]
    dagster_home: str


def create_project(folder: Path, brokers: str) -> CreatedProject:
    """Write a repository into a folder: Dagster's wiring, settings, an example stream with its test.

    Args:
        folder: The folder; made if it is missing.
        brokers: Kafka's bootstrap servers.

    Raises:
        LockstepError: One of the files exists; nothing is written then.
    """
    contents = {**_make_wiring(brokers, name_location(folder)), **_make_starters(brokers, folder)}
    unchanged = tuple(name for name in REPOSITORY if (folder / name).exists())
    for name in unchanged:
        del contents[name]
    # Before anything is written: a project is made whole, or not at all.
    if found := sorted(name for name in contents if (folder / name).exists()):
        raise LockstepError(
            f"{folder / found[0]} exists, and would be replaced",
            next_step="name a folder without the files of a project: lockstep init FOLDER",
        )
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return CreatedProject(str(folder), tuple(sorted(contents)), unchanged, str((folder / DAGSTER_HOME).absolute()))


def name_location(folder: Path) -> str:
    """The name of Dagster's code location: the words of the folder's name, joined by underscores."""
    words = "_".join(re.findall(r"[a-z0-9]+", folder.absolute().name.lower()))
    if words[:1].isalpha():
        return words
    return f"streams_{words}".rstrip("_")


class RenewedProject(msgspec.Struct, frozen=True):
    """The changes of an update of a project.

    Attributes:
        folder: The project.
        added: Files that it lacked.
        replaced: Files with another content.
        saved: The new names of their content, in the same order: `.before` at the end, or `.before2` after an earlier
            update, and so on.
        kept: Files of the user that differ from those of a new project.
    """

    folder: str
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    saved: tuple[str, ...]
    kept: tuple[str, ...]


def renew_project(folder: Path) -> RenewedProject:
    """Bring the jobs and sensors of a project to the installed release.

    Raises:
        LockstepError: The folder has no project.
    """
    if not (folder / DEFINITIONS).exists():
        raise LockstepError(
            f"{folder} has no {DEFINITIONS}: it is not a project", next_step="create a project: lockstep init FOLDER"
        )
    added = list[str]()
    replaced = dict[str, str]()
    unchanged = list[str]()
    for name, text in _make_wiring("", name_location(folder)).items():
        path = folder / name
        present = None
        if path.exists():
            present = path.read_text()
        if present == text or name == SETTINGS:
            continue
        if Path(name).parts[0] not in WIRING and present is not None:
            unchanged.append(name)  # edited by hand as a rule, so it is named and not replaced
            continue
        if present is None:
            added.append(name)
        else:
            # The user may have changed it: the old file stays under another name.
            saved = path.rename(_find_free_name(path))
            replaced[name] = saved.relative_to(folder).as_posix()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = sorted(replaced)
    saved_names = tuple(replaced[name] for name in names)
    return RenewedProject(str(folder), tuple(sorted(added)), tuple(names), saved_names, tuple(sorted(unchanged)))


def _find_free_name(path: Path) -> Path:
    """The name for a replaced file: unused by earlier updates."""
    names = (path.with_name(f"{path.name}{BEFORE}{number}") for number in chain(("",), count(2)))
    return next(name for name in names if not name.exists())


def find_template() -> Path:
    """The folder with the first files of a new project."""
    return TEMPLATE if TEMPLATE.exists() else CHECKOUT


def _make_wiring(brokers: str, location: str) -> Mapping[str, str]:
    """The text of each file that Dagster and lockstep read."""
    root = find_template()
    wiring = list[Path]()
    for package in WIRING:
        wiring += (root / package).glob("*.py")
    definitions = _STREAMS_IMPORTED.sub(f"from {PACKAGE}.readings import readings\n", (root / DEFINITIONS).read_text())
    return {
        DEFINITIONS: _STREAMS_NAMED.sub(r"\1 = (readings,)", definitions),
        "workspace.yaml": _LOCATION_NAMED.sub(rf"\g<1>{location}", (root / "workspace.yaml").read_text()),
        SETTINGS: f'[kafka]\nbootstrap_servers = "{brokers}"\n',
        f"{DAGSTER_HOME}/dagster.yaml": (root / "deploy" / "dagster.yaml").read_text(),
        **{path.relative_to(root).as_posix(): path.read_text() for path in wiring},
    }


def _make_starters(brokers: str, folder: Path) -> Mapping[str, str]:
    """The text of each file of `STARTERS`."""
    location = name_location(folder)
    values = {"BROKERS": brokers, "LOCATION": location, "PROJECT": location.replace("_", "-"), "VERSION": __version__}
    contents: dict[str, str] = {}
    for name, template in STARTERS.items():
        text = (FILES / template).read_text()
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        contents[name] = text
    return contents
