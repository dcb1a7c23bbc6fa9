"""A new project: the files of this repository that belong to a user's own one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lockstep.declare.discovery import PACKAGE
from lockstep.errors import LockstepError

TEMPLATE = Path(__file__).parents[1] / "template"
"""In an installed package; a checkout is its own template."""
CHECKOUT = Path(__file__).parents[3]
DAGSTER_HOME = "dagster_home"
_EXAMPLE_STREAMS = re.compile(r"^from assets\..*\n", re.MULTILINE)
_DECLARED_STREAMS = re.compile(r"^(STREAMS: .*?) = \(.*\)$", re.MULTILINE)


class CreatedProject(msgspec.Struct, frozen=True):
    """What was written.

    Attributes:
        folder: The project.
        files: Its files, from the folder.
        dagster_home: The value of `DAGSTER_HOME`.
    """

    folder: str
    files: tuple[str, ...]
    dagster_home: str


def create_project(folder: Path, brokers: str) -> CreatedProject:
    """Write Dagster's wiring, its settings and those of lockstep into a folder; the streams are the user's.

    Args:
        folder: The folder; made if it is missing.
        brokers: Kafka's bootstrap servers.

    Raises:
        LockstepError: One of the files exists; nothing is written then.
    """
    contents = _make_contents(brokers)
    if found := sorted(name for name in contents if (folder / name).exists()):
        raise LockstepError(
            f"{folder / found[0]} exists, and would be replaced",
            next_step="name a folder without the files of a project: lockstep init FOLDER",
        )
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / PACKAGE).mkdir(exist_ok=True)
    return CreatedProject(str(folder), tuple(sorted(contents)), str((folder / DAGSTER_HOME).absolute()))


def _make_contents(brokers: str) -> Mapping[str, str]:
    """The text of each file."""
    root = TEMPLATE if TEMPLATE.exists() else CHECKOUT
    wiring = [path for package in ("jobs", "sensors") for path in (root / package).glob("*.py")]
    definitions = _EXAMPLE_STREAMS.sub("", (root / "definitions.py").read_text())
    return {
        "definitions.py": _DECLARED_STREAMS.sub(r"\1 = ()", definitions),
        "workspace.yaml": (root / "workspace.yaml").read_text(),
        "lockstep.toml": f'[kafka]\nbootstrap_servers = "{brokers}"\n',
        f"{DAGSTER_HOME}/dagster.yaml": (root / "deploy" / "dagster.yaml").read_text(),
        **{path.relative_to(root).as_posix(): path.read_text() for path in wiring},
    }
