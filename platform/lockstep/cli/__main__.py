"""Entry point of `lockstep` and `python -m lockstep.cli`. The import of the command modules registers them."""

from __future__ import annotations

from lockstep.cli import control, inspect, install, maintain, messages, prove, recover, rehearse, tables
from lockstep.cli.app import app

__all__ = [
    "app",
    "control",
    "inspect",
    "install",
    "main",
    "maintain",
    "messages",
    "prove",
    "recover",
    "rehearse",
    "tables",
]


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
