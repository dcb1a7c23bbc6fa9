"""`lockstep`: what the web UI can do, and what it cannot.

Each file of `lockstep/commands` adds its commands to the application when it is imported here.
"""

from __future__ import annotations

from lockstep.cli import control, inspect
from lockstep.cli.app import app

__all__ = ["GROUPS", "app", "main"]

GROUPS = (inspect, inspect, inspect, control, control, control, inspect, control, inspect)
"""The files of commands, in no order that matters: `Panel` groups them in --help."""


def main() -> None:
    """Entry point of the command."""
    app()


if __name__ == "__main__":
    main()
