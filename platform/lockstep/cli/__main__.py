"""Entry point of `lockstep` and `python -m lockstep.cli`. The import of the command modules registers them."""

from __future__ import annotations

from lockstep.cli import control, inspect, maintain, prove, recover, rehearse
from lockstep.cli.app import app

__all__ = ["app", "control", "inspect", "main", "maintain", "prove", "recover", "rehearse"]


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
