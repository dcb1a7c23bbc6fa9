"""Remove one rule of the library at a time and check that tests fail: `python -m tests.house.mutants --help`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tests.house.mutants.run import NotGreen, is_accepted, run_mutants
from tests.house.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[3]
CORES = len(os.sched_getaffinity(0))

Only = Annotated[str, typer.Option(help="Only mutants whose name contains this text.")]
Workers = Annotated[int, typer.Option(help="How many run at the same time.", min=1)]


def main(only: Only = "", workers: Workers = CORES) -> None:
    """Run each mutant against its near tests. Exit with 1 if a mutant survives that is not called equivalent."""
    chosen = [each for each in MUTANTS if only in each.name]
    if not chosen:
        raise typer.BadParameter(f"no mutant's name contains {only!r}")
    try:
        verdicts = run_mutants(ROOT, chosen, workers, lambda line: print(line, flush=True))  # noqa: T201  # the result
    except NotGreen as error:
        print(error)  # noqa: T201  # as above
        raise typer.Exit(1) from None
    raise typer.Exit(0 if is_accepted(verdicts) else 1)


if __name__ == "__main__":
    typer.run(main)
