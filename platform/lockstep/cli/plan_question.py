"""The question of commands that change the past of a stream: the plan is shown, and somebody agrees to it.

`--plan` only shows the plan, `--yes` skips the question. Without a terminal one of the two is required.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer
from rich.console import RenderableType

from lockstep.cli.app import FAILED
from lockstep.cli.output import print_note, print_out

PlanOnly = Annotated[bool, typer.Option("--plan", help="Only show the plan: nothing is changed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; required without a terminal.")]


T = TypeVar("T")


def ask_for_plan(
    make_plan: Callable[[], T],
    show: Callable[[T], RenderableType],
    *,
    yes: bool,
    is_due: Callable[[T], bool] = lambda _: True,
) -> None:
    """Show a plan and ask for it, unless the answer is given or the plan changes nothing.

    Args:
        make_plan: Makes the plan; not called with an answer.
        show: The plan as text.
        yes: The answer was given on the command line.
        is_due: Whether a plan changes something.

    Raises:
        typer.BadParameter: A terminal is missing.
        typer.Exit: The plan is declined.
    """
    if yes:
        return
    if not is_terminal():
        problem = "a terminal is missing: add --yes to carry the plan out, or --plan to see it"
        raise typer.BadParameter(problem, param_hint="--yes")
    plan = make_plan()
    if not is_due(plan):
        return
    print_out(show(plan))
    if not typer.confirm("Carry it out?"):
        print_note("nothing was changed")
        raise typer.Exit(FAILED)


def is_terminal() -> bool:
    """Whether a person can read the plan and answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()
