"""The convention of commands that change the past of a stream: the plan is shown and asked for, then carried out.

`--plan` only shows the plan, `--yes` skips the question. Without a terminal one of the two is required.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lockstep.cli.app import FAILED
from lockstep.cli.output import print_described, print_note, print_out, render_description

if TYPE_CHECKING:
    from lockstep.operations.plan_frame import Described, Plan, Prepared

PlanOnly = Annotated[bool, typer.Option("--plan", help="Only show the plan: nothing is changed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; required without a terminal.")]

P = TypeVar("P", bound="Plan")
R = TypeVar("R", bound="Described")


def carry_out(prepare: Callable[[], Prepared[P, R]], *, plan_only: bool, yes: bool, as_json: bool) -> P | R:
    """Show a plan and ask for it; then commit the plan that was shown, and print the result.

    Args:
        prepare: Makes the plan; nothing is changed by it.
        plan_only: Only print the plan.
        yes: The answer was given on the command line.
        as_json: Print JSON. The question is text.

    Returns:
        The printed value.

    Raises:
        typer.BadParameter: A terminal is missing.
        typer.Exit: The plan is declined.
        Refused: The plan has obstacles, or differs from the plan that was shown.
    """
    if not (plan_only or yes or is_terminal()):
        problem = "a terminal is missing: add --yes to carry the plan out, or --plan to see it"
        raise typer.BadParameter(problem, param_hint="--yes")
    prepared = prepare()
    if not (plan_only or yes):
        _ask(prepared.plan)
    shown = prepared.plan if plan_only else prepared.commit()
    print_described(shown, as_json=as_json)
    return shown


def _ask(plan: Plan) -> None:
    """Ask, unless the plan changes nothing, or is refused anyway."""
    if not plan.is_due or plan.obstacles:
        return
    print_out(render_description(plan.describe()))
    if not typer.confirm("Carry it out?"):
        print_note("nothing was changed")
        raise typer.Exit(FAILED)


def is_terminal() -> bool:
    """Whether a person can read the plan and answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()
