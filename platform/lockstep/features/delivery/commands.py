"""Deliveries on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import RenderableType
from rich.text import Text

from lockstep.cli.app import (
    FAILED,
    AsJson,
    Panel,
    list_all_streams,
    load_settings_or_exit,
    make_group,
    register_command,
    show_error,
)
from lockstep.cli.output import print_answer, render_descriptions
from lockstep.cli.plan_question import PlanOnly, Yes, carry_out
from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.delivery.deliver import DeliveryRun
    from lockstep.features.delivery.events import DeliveryHistory
    from lockstep.features.delivery.registered_schema import RowSchema
    from lockstep.features.delivery.status import DeliveryPlan
    from lockstep.features.delivery.targets import DeclaredDelivery

T = TypeVar("T")
DeliveryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a delivery.")]
delivery = make_group("delivery", Panel.RUN, "Stop a delivery, start it again, rebuild its target.")
STOP_SECONDS = 90.0
"""Time for the write in progress to end after Ctrl-C; a write that is killed is undone or completed by the next run."""


@register_command("deliver large_moves --follow", Panel.RUN)
def deliver(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a delivery; all by default.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further batches, until Ctrl-C.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Continue after a halt; the rows that it names stay as they are.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show how far it is behind, and its next run.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Show its newest events.")] = False,
    as_json: AsJson = False,
) -> None:
    """Deliver committed rows to the targets of deliveries. Dagster does so every minute.

    A run continues from the token in the target. A newer run of the same delivery fences an older run.
    A delivery whose table was rewound before its position halts by name. Without a name, a delivery that fails leaves
    the others their turn; exit code 1 follows.
    """
    from lockstep.features.delivery.deliver import choose_deliveries, list_deliveries
    from lockstep.features.delivery.events import read_history
    from lockstep.features.delivery.status import plan_delivery

    chosen = choose_deliveries(name, list_deliveries(list_all_streams().values()))
    root = load_settings_or_exit().table_root
    if follow and (name is None or plan or history):
        raise typer.BadParameter("names one delivery, without --plan and --history", param_hint="--follow")
    if accept and name is None:
        raise typer.BadParameter("names one delivery", param_hint="--accept")
    if history:
        print_answer([read_history(root, each.delivery.name) for each in chosen], _histories, as_json=as_json)
        return
    if plan:
        planned, failed = _act_on_each(chosen, lambda each: plan_delivery(each, root))
        print_answer(planned, _plans, as_json=as_json)
    else:
        done, failed = _act_on_each(chosen, lambda each: _run(each, follows=follow, accepts=accept))
        print_answer(done, _runs, as_json=as_json)
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(FAILED)


@register_command("delivery stop large_moves", Panel.RUN, name="stop", within=delivery)
def stop(name: DeliveryName, *, as_json: AsJson = False) -> None:
    """Stop a delivery: a run in progress ends after its write, and no run delivers until it is started again."""
    from lockstep.features.delivery.stop_order import stop_delivery

    _order(name, stop_delivery, as_json=as_json)


@register_command("delivery start large_moves", Panel.RUN, name="start", within=delivery)
def start(name: DeliveryName, *, as_json: AsJson = False) -> None:
    """Start a delivery after a stop: the next run delivers; Dagster runs it every minute."""
    from lockstep.features.delivery.stop_order import start_delivery

    _order(name, start_delivery, as_json=as_json)


@register_command("delivery rebuild large_moves --plan", Panel.RUN, name="rebuild", within=delivery)
def rebuild(
    name: DeliveryName,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace all rows, also if the undone ones can be deleted alone.")
    ] = False,
    accept_dropped: Annotated[
        bool, typer.Option("--accept-dropped", help="The target loses rows that retention has dropped.")
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the target of a delivery from the table, after a rewind, a lost target or a corrected function.

    Undone rows of an appended table in Postgres are deleted; any other target gets all rows of the table again. No run
    delivers meanwhile.
    """
    from lockstep.features.delivery.rebuild import prepare_rebuild

    settings = load_settings_or_exit()
    carry_out(
        lambda: prepare_rebuild(_choose(name), settings, replaces=replace, accept_dropped=accept_dropped),
        plan_only=plan,
        yes=yes,
        as_json=as_json,
    )


@register_command("delivery schema large_moves", Panel.RUN, name="schema", within=delivery)
def schema(name: DeliveryName, *, as_json: AsJson = False) -> None:
    """Print the Avro schema of a delivery's rows, to register it by hand."""
    from lockstep.declare.delivery import KafkaTopic
    from lockstep.features.delivery.registered_schema import ValueSchema

    declared = _choose(name)
    target = declared.delivery.target
    made = None
    if isinstance(target, KafkaTopic):
        made = ValueSchema(declared.delivery, target, declared.stream.types.row, None).schema
    if made is None:
        raise typer.BadParameter("is a delivery whose rows have no Avro schema", param_hint="NAME")
    print_answer(made, _schema, as_json=as_json)


def _schema(shown: RowSchema) -> RenderableType:
    return Text(shown.schema)


def _choose(name: str) -> DeclaredDelivery:
    from lockstep.features.delivery.deliver import choose_deliveries, list_deliveries

    (declared,) = choose_deliveries(name, list_deliveries(list_all_streams().values()))
    return declared


def _order(name: str, order: Callable[[Path, str, int], bool], *, as_json: bool) -> None:
    """Store an order, and show the plan of the next run."""
    from lockstep.features.delivery.status import plan_delivery, read_source_position

    declared = _choose(name)
    root = load_settings_or_exit().table_root
    read = read_source_position(root, name, declared.stream.name)
    order(root, name, 0 if read is None else read.last_complete)
    print_answer([plan_delivery(declared, root)], _plans, as_json=as_json)


def _run(declared: DeclaredDelivery, *, follows: bool, accepts: bool) -> DeliveryRun:
    """Run a delivery; Ctrl-C and SIGTERM end it after the write in progress."""
    from lockstep.engine.driver.main_thread import StopSignal, run_off_main_thread
    from lockstep.features.delivery.deliver import run_delivery

    stopping = StopSignal()
    settings = load_settings_or_exit()
    return run_off_main_thread(
        lambda: run_delivery(declared, settings, stop=stopping.wanted, follows=follows, accepts=accepts),
        stopping,
        patience_seconds=STOP_SECONDS,
        tick=lambda: None,
        abandon=lambda: None,
    )


def _act_on_each(
    chosen: Sequence[DeclaredDelivery], act: Callable[[DeclaredDelivery], T]
) -> tuple[list[T], list[LockstepError]]:
    """The results, and the errors of those that failed: none keeps the others from their turn."""
    done = list[T]()
    failed = list[LockstepError]()
    for each in chosen:
        try:
            done.append(act(each))
        except LockstepError as error:
            failed.append(error)
    return done, failed


def _plans(found: list[DeliveryPlan]) -> RenderableType:
    return render_descriptions(found)


def _runs(found: list[DeliveryRun]) -> RenderableType:
    return render_descriptions(found)


def _histories(found: list[DeliveryHistory]) -> RenderableType:
    return render_descriptions(found)
