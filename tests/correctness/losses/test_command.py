"""A loss as operators see it: the run names it, `status` alarms, and `verify` exits with 4 until it is accepted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.table.layout import StreamFolders
from lockstep.verify.report import ViolationKind
from lockstep.verify.verify import verify_stream
from tests.correctness.verify.forging import Forged
from tests.integration.cli.conftest import platform_in
from tests.support.feed import ProducerRecord
from tests.support.window_folds import Value, accepting_windows, strict_windows

if TYPE_CHECKING:
    from lockstep.features.localdev.broker import Broker
    from tests.integration.cli.conftest import Platform

TRADES = 3_000
BAD = 1_500
A_SECOND = 60
LOST = BAD - 3 * A_SECOND
"""At the bad message the bar up to second 3 is closed; later bars are open."""


def send_trades(platform: Platform) -> str:
    """Send trades of one symbol, including an undecodable message; return the topic."""
    topic = platform.feed.create("trades")
    values = [msgspec.json.encode(Value(at // A_SECOND, at)) for at in range(TRADES)]
    values[BAD] = b'{"broken'
    platform.feed.append(topic, [ProducerRecord("BTC", value) for value in values], 0)
    return topic


def read_alarms(platform: Platform) -> list[str]:
    document = json.loads(platform.call("status", "windows", "--json").stdout)
    return [alarm["kind"] for alarm in document["alarms"]]


def test_a_bad_message_that_suspends_is_named_everywhere_until_its_loss_is_accepted(
    broker: Broker, tmp_path: Path
) -> None:
    platform = platform_in(tmp_path, broker, strict_windows)
    topic = send_trades(platform)
    said = subprocess.run(
        [str(Path(sys.executable).with_name("lockstep")), "run", "windows", "--available-now"],
        cwd=platform.folder,
        env=os.environ | platform.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lost = f"lost the states of 1 sessions, with {LOST} messages: undecodable at {topic}/0@{BAD}"
    assert f"batch 1 {lost}; lockstep losses windows lists them" in said.stderr

    status = platform.call("status", "windows")
    assert status.exit_code == 0, status.output
    shown = " ".join(status.stdout.split())
    assert f"1 session lost their states, and with them {LOST:,} messages, in batch 1" in shown
    assert "loss" in read_alarms(platform)

    proof = platform.call("verify", "windows")
    assert proof.exit_code == 4, proof.output
    assert f"not accepted: 1 sessions, {LOST} messages" in proof.stdout

    assert platform.call("losses", "windows", "--accept", "1").exit_code == 2
    refused = platform.call("losses", "windows", "--accept", "2", "--why", "seen")
    assert (refused.exit_code, "the newest loss is that of batch 1" in refused.stderr) == (1, True)
    assert platform.call("losses", "windows", "--accept", "1", "--why", "seen").exit_code == 0

    proof = platform.call("verify", "windows")
    assert proof.exit_code == 0, proof.output
    assert f"lost: the states of 1 sessions, with {LOST} messages; accepted" in proof.stdout
    assert "loss" not in read_alarms(platform)
    assert platform.call("losses", "windows", "--accept", "1", "--why", "again").exit_code == 1


def test_a_policy_that_accepts_losses_ends_with_0_and_the_count(broker: Broker, tmp_path: Path) -> None:
    platform = platform_in(tmp_path, broker, accepting_windows)
    send_trades(platform)
    platform.runs.run()
    proof = platform.call("verify", "windows")
    assert proof.exit_code == 0, proof.output
    assert f"lost: the states of 1 sessions, with {LOST} messages; accepted" in proof.stdout
    assert "loss" not in read_alarms(platform)


FORGERIES: dict[str, list[dict[str, object]]] = {
    "no loss": [],
    "fewer messages": [{"sessions": 1, "messages": LOST - 1}],
    "unknown messages": [{"sessions": 1, "messages": None}],
    "more sessions": [{"sessions": 2, "messages": LOST}],
    "twice": [{}, {}],
}


def test_a_forged_loss_is_found(broker: Broker, tmp_path: Path, subtests: pytest.Subtests) -> None:
    platform = platform_in(tmp_path, broker, strict_windows)
    send_trades(platform)
    platform.runs.run()
    folders = StreamFolders("windows", tmp_path / "forged")
    ledger = Forged.copy(platform.runs.folders.table.parent, folders.table.parent)
    file, at, row = next(each for each in ledger.all_rows("ledger") if each[2]["losses"])
    (loss,) = row["losses"]
    for name, forged in FORGERIES.items():
        with subtests.test(name):
            ledger.change("ledger", file, at, losses=[loss | each for each in forged])
            proof = verify_stream(platform.runs.stream, folders, platform.runs.settings.kafka)
            assert {each.kind for each in proof.violations} == {ViolationKind.COUNT_DIFFERS}
