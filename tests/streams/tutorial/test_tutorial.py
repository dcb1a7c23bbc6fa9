"""The page "add a stream in one file" works as written, step by step."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from tests.streams.tutorial.conftest import PAGE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.streams.tutorial.conftest import Reader


STREAM = "assets/plant.py"


def test_the_page_holds_these_files_and_no_python_that_is_not_tested(blocks: dict[str, str]) -> None:
    assert list(blocks) == [STREAM, "tests/plant/test_plant.py", "definitions.py", "send_plant.py"]
    assert PAGE.read_text().count("```python") == len(blocks)


def test_the_streams_that_the_page_names_are_those_of_the_repository(blocks: dict[str, str]) -> None:
    (line,) = (line for line in blocks["definitions.py"].splitlines() if line.startswith("STREAMS"))
    assert line.replace(", plant)", ")") in (ROOT / "definitions.py").read_text()


def test_the_unit_tests_of_the_page_pass_and_can_fail(reader: Reader) -> None:
    assert "3 passed" in reader.does("python", "-m", "pytest", "-q", "tests/plant")
    stream = reader.folder / STREAM
    stream.write_text(stream.read_text().replace("max(sensor.highest, message.value)", "message.value"))
    assert "1 failed, 2 passed" in reader.does("python", "-m", "pytest", "-q", "tests/plant", code=1)


def test_the_code_passes_the_checks_of_the_house(reader: Reader, mypy_cache: Path) -> None:
    house = ("--config", str(ROOT / "pyproject.toml"), "--config", f"src=['.', '{ROOT / 'platform'}']")
    reader.does("ruff", "check", *house, "assets", "tests")
    reader.does("ruff", "format", "--check", *house, ".")
    reader.does(
        "mypy", "--strict", "--explicit-package-bases", "--config-file=", "--cache-dir", str(mypy_cache), STREAM
    )


def test_one_name_in_definitions_gives_all_parts_of_the_stream(reader: Reader) -> None:
    assets = "[*map(str, d.defs.resolve_all_asset_keys())]"
    sensors = "[[s.name, [t.job_name for t in s.targets]] for s in d.defs.sensors]"
    said = reader.does("python", "-c", f"import json, definitions as d; print(json.dumps([{assets}, {sensors}]))")
    keys, watched = json.loads(said)
    assert "AssetKey(['plant', 'table'])" in keys
    watching = [name for name, jobs in watched if "plant_stream" in jobs]
    assert watching == ["stream_topics", "stream_supervisor"]


@pytest.mark.slow
def test_what_is_sent_is_read_and_a_second_sending_is_refused_as_the_page_shows(
    reader: Reader, broker: Broker, tmp_path: Path
) -> None:
    exported = {
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "LOCKSTEP_TABLE_ROOT": str(tmp_path / "tables"),
        "LOCKSTEP_LOCAL_ROOT": str(tmp_path / "local"),
        "LOCKSTEP_SPARK__MASTER": "local[1]",
    }
    reader = dataclasses.replace(reader, environment=exported)
    reader.does("python", "send_plant.py")
    reader.does("lockstep", "run", "plant", "--available-now")
    found = json.loads(reader.does("lockstep", "query", "plant", "--json"))
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    assert [(row["_session"], row["_sequence"], row["value"], row["change"]) for row in rows] == [
        (boiler, seq, 4.0 if seq == 1 else 4.0 + seq / 8, {1: 0.0, 2: 0.25}.get(seq, 0.125))
        for boiler in ("B1", "B2")
        for seq in (1, 2, 3, 4)
    ]
    reader.does("python", "send_plant.py")
    (evidence,) = (line for line in PAGE.read_text().splitlines() if line.startswith("sequence goes back at"))
    refusal = reader.does("lockstep", "run", "plant", "--available-now", code=3)
    assert evidence in refusal
    assert "lockstep resume plant --accept-loss plant.north/0@8" in refusal
