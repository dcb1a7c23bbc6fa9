"""Runs mutants: each in a copy of the library, against its near tests and with a time limit.

The copy is found before the library itself, by PYTHONPATH; the repository's tests are used. First the near tests
of all mutants run against an unchanged copy: a test that fails there would kill any mutant.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.house.mutants.mutant import Mutant

SECONDS_MAX = 600.0
"""Limit of a mutant's near tests: they take 2 to 20 s on a quiet machine, and several times that on a busy machine."""
OPTIONS = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not broker and not spark", "-rfE")
PASSED, FAILED = 0, 1
"""Exit codes of pytest; any other means that the tests were not run."""
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(Enum):
    """The outcome of a mutant; a run succeeds if each is killed or equivalent."""

    KILLED = "killed"
    EQUIVALENT = "equivalent"
    SURVIVED = "survived"
    NOT_EQUIVALENT = "killed, though called equivalent"
    UNDECIDED = "undecided"


ACCEPTED = frozenset({Outcome.KILLED, Outcome.EQUIVALENT})


@dataclass(frozen=True)
class Verdict:
    """The result of one mutant.

    Attributes:
        mutant: The mutant.
        outcome: Its outcome.
        detail: The test that failed, the reason why it is equivalent, or why it is undecided.
        seconds: Wall time.
    """

    mutant: Mutant
    outcome: Outcome
    detail: str
    seconds: float


class NotGreen(Exception):
    """Near tests fail without any mutant."""


def run_mutants(root: Path, mutants: Sequence[Mutant], workers: int, report: Callable[[str], object]) -> list[Verdict]:
    """Run the near tests of all mutants, and print the closing table.

    1. Copy the library once a worker.
    2. Run all near tests against an unchanged copy.
    3. Run each mutant: change the file, run its near tests, restore the file.

    Args:
        root: The repository.
        mutants: The mutants.
        workers: Number of mutants that run at the same time.
        report: Called with each line of the output.

    Raises:
        NotGreen: A near test fails without any mutant.
        ValueError: The piece of a mutant does not occur exactly once.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = SimpleQueue[Path]()  # 1
        for number in range(workers):
            copies.put(shutil.copytree(root / "platform", Path(folder) / str(number)))
        _check_green(root, copies, mutants)  # 2

        def run(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                verdict = run_mutant(root, copy, mutant)  # 3
            finally:
                copies.put(copy)
            report(f"{verdict.outcome.value:12} {verdict.seconds:5.1f} s  {mutant.name}")
            return verdict

        with ThreadPoolExecutor(workers) as pool:
            verdicts = list(pool.map(run, mutants))
    for line in make_table(verdicts):
        report(line)
    return verdicts


def run_mutant(root: Path, copy: Path, mutant: Mutant) -> Verdict:
    """Run the near tests of a mutant in a copy of the library, and restore the copy."""
    original = root / mutant.file
    mutated = copy / Path(mutant.file).relative_to("platform")
    began = time.monotonic()
    mutated.write_text(mutant.change(original.read_text()))
    try:
        code, output = _run_tests(root, copy, mutant.tests, SECONDS_MAX)
    finally:
        shutil.copy2(original, mutated)
    outcome, detail = _judge(mutant, code, output)
    return Verdict(mutant, outcome, detail, time.monotonic() - began)


def _judge(mutant: Mutant, code: int | None, output: str) -> tuple[Outcome, str]:
    if code == FAILED:
        failure = _FAILURE.search(output)
        outcome = Outcome.NOT_EQUIVALENT if mutant.equivalent else Outcome.KILLED
        return outcome, "" if failure is None else failure[1]
    if code == PASSED:
        return (Outcome.EQUIVALENT, mutant.equivalent) if mutant.equivalent else (Outcome.SURVIVED, "")
    if code is None:
        return Outcome.UNDECIDED, f"no result within {SECONDS_MAX:.0f} s"
    return Outcome.UNDECIDED, f"pytest ended with {code}: {output.strip()[-2000:]}"


def _check_green(root: Path, copies: SimpleQueue[Path], mutants: Iterable[Mutant]) -> None:
    nodes = sorted({node for mutant in mutants for node in mutant.tests})
    copy = copies.get()
    code, output = _run_tests(root, copy, nodes, 3 * SECONDS_MAX)
    copies.put(copy)
    if code != PASSED:
        raise NotGreen(f"near tests fail without a mutant (pytest: {code}):\n{output.strip()[-4000:]}")


def _run_tests(root: Path, copy: Path, nodes: Iterable[str], seconds_max: float) -> tuple[int | None, str]:
    """Run tests and return the exit code of pytest, None after the time limit, and its output.

    Nothing is compiled into the copy: bytecode of an earlier mutant of the same size and second would be reused.
    """
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--timeout={2 * seconds_max:.0f}", *nodes]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        return code, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests, if they still run, with the processes that they started."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def make_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the closing table: details of mutants that are not killed, and the count of each outcome."""
    listed = [each for each in verdicts if each.outcome is not Outcome.KILLED]
    lines = [f"{each.outcome.value}: {each.mutant.name}: {each.detail or each.mutant.tests}" for each in listed]
    counts = {outcome: sum(each.outcome is outcome for each in verdicts) for outcome in Outcome}
    lines.append(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    return lines


def is_accepted(verdicts: Iterable[Verdict]) -> bool:
    """Return whether each mutant is killed, or called equivalent and not killed."""
    return all(each.outcome in ACCEPTED for each in verdicts)
