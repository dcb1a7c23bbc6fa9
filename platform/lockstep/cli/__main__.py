"""Entry point of `lockstep` and `python -m lockstep.cli`. The import of the command modules registers them."""

from __future__ import annotations

from importlib import import_module

from lockstep.cli.app import app, show_error
from lockstep.feature import ExtensionBroken, list_broken_extensions, list_features, load_commands

__all__ = ["app", "main", "register_commands"]

COMMANDS = tuple(
    f"lockstep.cli.{name}" for name in ("control", "inspect", "install", "messages", "prove", "recover", "tables")
)
"""Modules of the core's commands."""


def register_commands() -> None:
    """Import the modules of all commands: those of the core, and those of the installed features."""
    for module in COMMANDS:
        import_module(module)
    broken = list(list_broken_extensions())
    for feature in list_features():
        try:
            load_commands(feature)
        except ExtensionBroken as error:
            broken.append(error)
    for problem in broken:
        show_error(problem)


register_commands()


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
