"""A bug of a user in a scratch copy of the streams, and the declared rule that finds it: the end of `make demo`.

The copy is a separate code location, whose stream has another name and another table root: the demo's stream, its
table, its checks and its consumer group stay as they are. One run of Dagster reads one topic of the demo into the
copy's table, and checks it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec

from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import LocalPlatform
from lockstep.features.quality.check import read_last_check
from lockstep.features.quality.report import make_report_path
from lockstep.features.quality.rules import RuleOutcome, RuleResult
from lockstep.table.layout import StreamFolders

COPY = "order_books_scratch"
RULE = "quantity_is_positive"
SOURCE = "assets/order_books.py"
NOW = {"ops": {f"{COPY}__table": {"config": {"available_now": True}}}}
CODE = ("definitions.py", "assets", "jobs", "sensors")
"""The parts of a code location."""
BUG = ("None if is_zero(quantity) else PriceLevel(price, quantity)", "PriceLevel(price, quantity)")
"""By the exchange's rules, quantity zero removes a level; the bug keeps the level, with quantity zero."""


class SeededBug(msgspec.Struct, frozen=True):
    """A line of the fold, and what became of it.

    Attributes:
        line: Its number.
        before: The line.
        after: The line with the bug.
    """

    line: int
    before: str
    after: str


class CaughtBug(msgspec.Struct, frozen=True):
    """The findings of a check.

    Attributes:
        result: The result of the rule.
        severity: The severity of the failed check in Dagster.
        run_id: The run of Dagster that shows it.
        report: The report for people.
    """

    result: RuleResult
    severity: str
    run_id: str
    report: Path


def open_scratch(folder: Path, kafka: str) -> LocalPlatform:
    """The platform of the copy: separate code, tables and Dagster in a folder; Kafka is another's.

    Args:
        folder: The folder.
        kafka: Address of Kafka.
    """
    settings = {"LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": kafka, "PYTHONPATH": str(folder)}
    return LocalPlatform(folder, folder, settings=settings)


def copy_with_bug(repository: Path, scratch: LocalPlatform, topic: str) -> SeededBug:
    """Copy the code location with another name and one topic for its stream, and put the bug into its fold.

    1. Copy the code and the settings of Dagster; tables and state of an earlier demo stay.
    2. Name the stream, and the topic that it reads.
    3. Put in the bug.

    Args:
        repository: The folder that holds `definitions.py`.
        scratch: The platform of the copy.
        topic: The topic.

    Raises:
        LockstepError: The stream is not written as the demo expects it.
    """
    for part in (scratch.dagster_home, scratch.folder / "logs"):
        part.mkdir(parents=True, exist_ok=True)
    shutil.copy(repository / "deploy" / "dagster.yaml", scratch.dagster_home)  # 1
    for name in CODE:
        if (repository / name).is_dir():
            shutil.copytree(repository / name, scratch.folder / name, dirs_exist_ok=True)
        else:
            shutil.copy(repository / name, scratch.folder / name)
    text = (repository / SOURCE).read_text()
    changed = _replace(text, 'name="order_books"', f'name="{COPY}"')  # 2
    changed = _replace(changed, r'r"order_books\..+"', f'r"{re.escape(topic)}"')
    sound = changed  # 3
    changed = _replace(changed, *BUG)
    (scratch.folder / SOURCE).write_text(changed)
    lines = zip(sound.splitlines(), changed.splitlines(), strict=True)
    return next(SeededBug(at, *both) for at, both in enumerate(lines, 1) if both[0] != both[1])


def _replace(text: str, before: str, after: str) -> str:
    if text.count(before) != 1:
        raise LockstepError(
            f"{SOURCE} has {text.count(before)} times {before}; the demo seeds its bug into a stream that has it once",
            next_step=f"git diff {SOURCE}; take your change back for the demo",
        )
    return text.replace(before, after)


def catch_bug(scratch: LocalPlatform) -> CaughtBug:
    """Read the topic by the fold with the bug, check the rows, and see what Dagster and the report show.

    Raises:
        LockstepError: The run failed; or the rule does not fail, or is not shown as failed.
    """
    from lockstep.orchestration.launch import read_check_record  # loads Dagster

    command = ["dagster", "asset", "materialize", "--select", f"{COPY}/table", "-m", "definitions"]
    scratch.run("seeded-bug", [*command, "--config-json", json.dumps(NOW)])
    folders = StreamFolders(COPY, scratch.tables)
    last = read_last_check(folders)
    recorded = read_check_record(scratch.dagster_home, COPY, RULE)
    results = {result.rule: result for result in last.checked.results} if last is not None else {}
    found = results.get(RULE)
    report = make_report_path(folders)
    if found is None or found.outcome is not RuleOutcome.FAILED:
        raise scratch.failed("seeded-bug", f"rule {RULE} has not caught the bug: {found and found.outcome.value}")
    if recorded is None or recorded.passed:
        raise scratch.failed("seeded-bug", f"rule {RULE} has failed, and Dagster does not show it: {recorded}")
    if f"Where {RULE} is violated" not in report.read_text():
        raise LockstepError(f"rule {RULE} has failed, and the report does not show it", next_step=f"read {report}")
    return CaughtBug(found, recorded.severity, recorded.run_id, report)
