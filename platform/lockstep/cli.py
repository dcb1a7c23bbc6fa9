"""`lockstep`: what the web UI can do, and what it cannot.

Each file of `lockstep/commands` adds its commands to the application when it is imported here.
"""

from __future__ import annotations

from lockstep.commands import installation, look, message, operate, quarantine, resume, rows, run, verify
from lockstep.commands.app import app

__all__ = ["GROUPS", "app", "main"]

GROUPS = (look, rows, message, verify, run, operate, quarantine, resume, installation)
"""The files of commands, in no order that matters: `Panel` groups them in --help."""


def main() -> None:
    """Entry point of the command."""
    app()


if __name__ == "__main__":
    main()
