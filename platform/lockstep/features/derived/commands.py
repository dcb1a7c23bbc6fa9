"""Derived tables on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    list_all_derived,
    load_settings_or_exit,
    register_command,
    show_error,
)
from lockstep.cli.output import print_answer, render_descriptions
from lockstep.errors import LockstepError
from lockstep.progress import report_items

if TYPE_CHECKING:
    from lockstep.declare.derived import Derived
    from lockstep.features.derived.derive import DerivedPlan, DerivedRun


T = TypeVar("T")


@register_command("derive book_activity --plan", Panel.MAINTAIN)
def derive(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a derived table; all by default.")] = None,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Compute all rows again, also if current.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the unread versions and the pending rebuilds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring derived tables up to the tables of their streams. Dagster does so by the schedule of each.

    A table whose source was rewound, promoted or erased from, or whose checkpoint is lost, is rebuilt: readers see the
    old rows until the new rows replace them in one commit. Without a name, a table that fails leaves the others their
    turn; exit code 1 follows.
    """
    from lockstep.features.derived.derive import choose_derived, plan_derived, run_derived, start_session

    chosen = choose_derived(name, list_all_derived())
    settings = load_settings_or_exit()
    root = settings.table_root
    if plan:
        planned, failed = _act_on_each(chosen, lambda derived: plan_derived(derived, root))
        print_answer(planned, _derived_plans, as_json=as_json)
    else:

        def run(derived: Derived) -> DerivedRun:
            # Spark starts with the first table that has anything to do.
            return run_derived(derived, root, partial(start_session, derived, settings), rebuild=rebuild)

        runs, failed = _act_on_each(chosen, run)
        print_answer(runs, _derived_runs, as_json=as_json)
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(FAILED)


def _act_on_each(chosen: Sequence[Derived], act: Callable[[Derived], T]) -> tuple[list[T], list[LockstepError]]:
    """The results, and the errors of those that failed: none keeps the others from their turn."""
    results = list[T]()
    failed = list[LockstepError]()
    for derived in report_items(chosen, "derived tables", len(chosen)):
        try:
            results.append(act(derived))
        except LockstepError as error:
            failed.append(error)
    return results, failed


def _derived_plans(found: list[DerivedPlan]) -> RenderableType:
    return render_descriptions(found)


def _derived_runs(found: list[DerivedRun]) -> RenderableType:
    return render_descriptions(found)
