"""Tables of each release open with the current code: read, proven, continued, and rewound to a savepoint."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.broker import Broker
from lockstep.table.commit import OutputLog
from lockstep.table.dataset import open_dataset
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_ledger
from tests.integration.releases.installation import SAVEPOINT, STREAMS, Installation

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASES = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.fixture(scope="module", params=RELEASES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("stream", STREAMS)
def test_the_tables_of_a_release_are_read(folder: Path, stream: str) -> None:
    expected = json.loads((folder / "description.json").read_text())
    folders = StreamFolders(stream, folder / "tables")
    head = OutputLog(folders.table).base().head
    assert open_dataset(folders.table).to_table().num_rows == expected["rows"][stream]
    rows = Counter(row.generation for row in read_ledger(folders.ledger))
    assert head.generation == max(rows) > 1
    assert [each.name for each in head.savepoints] == [SAVEPOINT]


@pytest.fixture
def installation(folder: Path) -> Iterator[Installation]:
    """The installation of a release, with its Kafka."""
    broker = Broker.start(folder / "kafka")
    yield Installation(folder, broker)
    broker.stop()


@pytest.mark.slow
def test_an_installation_of_a_release_continues(installation: Installation) -> None:
    expected = json.loads((installation.folder / "description.json").read_text())
    assert installation.describe() == expected
    installation.send(31, 10)
    installation.read()
    after = installation.describe()
    assert (after["proofs"], after["followers"]) == (expected["proofs"], expected["followers"])
    assert all(count > expected["rows"][stream] for stream, count in after["rows"].items()), after
    for stream in STREAMS:
        installation.call("rewind", stream, "--to", SAVEPOINT, "--why", "a test", "--yes")
        installation.call("run", stream, "--available-now")
    again = installation.describe()
    assert (again["proofs"], again["rows"]) == (expected["proofs"], after["rows"])


def test_each_release_has_its_tables() -> None:
    """A release without an archive would promise compatibility without a proof."""
    text = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    released = re.findall(r"^## (\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert [path.name.removesuffix(".tar.xz") for path in RELEASES] == sorted(released) != []
