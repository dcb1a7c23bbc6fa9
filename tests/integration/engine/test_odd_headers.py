"""Header names that are not UTF-8: Kafka accepts them, and the client library fails at each read of the headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.model.record import UNREADABLE_HEADERS
from lockstep.verify.verify import verify_stream
from tests.integration.engine.test_odd_envelopes import CLASSES
from tests.support.odd_envelopes import summing
from tests.support.plain_reader import read_table
from tests.support.proven import PROVEN_OR_LOST
from tests.support.raw_headers import send_with_header

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


@pytest.mark.parametrize("name", CLASSES)
def test_a_message_with_such_a_header_is_read_or_kept_without_its_headers(
    feed: Feed, runs: LocalRuns, name: str
) -> None:
    """The message must not end its task, as no batch could be committed then."""
    runs = runs.of(summing(feed.pattern, CLASSES[name]))
    topic = feed.create("values")
    sent = [{"session": "a", "n": 1}, {"session": "a", "n": 1, "headed": True}, {"session": "a"}]
    send_with_header(feed.bootstrap_servers, topic, b"\xff", [json.dumps(value).encode() for value in sent])
    runs.run()
    assert read_table(runs.folders.table)["_offset"].to_pylist() == [0]
    kept = DeltaTable(runs.folders.quarantine).to_pyarrow_table().sort_by("offset").to_pylist()
    reasons = [f"ValueError: {UNREADABLE_HEADERS[0][0]}", "KeyError: 'n'"]
    assert [row["found"] for row in kept] == reasons
    assert [row["headers"] for row in kept] == [[{"name": UNREADABLE_HEADERS[0][0], "value": None}]] * 2
    found = verify_stream(runs.stream, runs.folders, runs.settings.kafka, None)
    assert (found.status in PROVEN_OR_LOST, found.violations) == (True, ())
