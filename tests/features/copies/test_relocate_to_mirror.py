"""A stream continues in a cluster with copies of its topics, with other topic ids and offsets."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.features.copies.relocate import export_savepoint, import_savepoint, prepare_import
from lockstep.features.history.rewind import RewindReason
from lockstep.features.history.savepoint import make_savepoint
from lockstep.operations.plan_frame import Refused
from lockstep.operations.retire import retire_topic
from lockstep.table.commit import OutputLog
from lockstep.table.ledger import read_ledger
from lockstep.verify.verify import verify_stream
from tests.integration.cli.conftest import Platform
from tests.support.adding_stream import BY_SUSPENSION, adding
from tests.support.feed import Feed, ProducerRecord, folded, session, snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.mirror_copier import append_checkpoint, append_copies, read_source

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

VALUES = session(8)
SENT_MS = 1_700_000_000_000
"""The create time of the first message; each message has another time, so no two are equal."""


@dataclass(frozen=True)
class Mirrored:
    """A stream of a cluster with an exported savepoint, and a second cluster.

    Attributes:
        topic: The topic, of six messages; the first two have expired since they were read.
        here: The producer's side of the first cluster.
        there: The producer's side of the second cluster.
        folder: The export: four messages are applied.
        alias: MirrorMaker's alias of the first cluster.
        root: Table root of the second stream.
    """

    topic: str
    here: Feed
    there: Feed
    folder: Path
    alias: str
    root: Path

    def stream(self, pattern: str) -> LocalRuns:
        """Return the stream over the topics of the second cluster."""
        return LocalRuns(adding(pattern, BY_SUSPENSION), self.there.bootstrap_servers, self.root)

    def copy(self, topic: str, start: int, until: int, *, transaction: str = "") -> None:
        """Copy messages of the topic to the second cluster."""
        found = read_source(self.here.bootstrap_servers, self.topic, start, until)
        append_copies(self.there.bootstrap_servers, topic, found, transaction=transaction)


@pytest.fixture
def mirrored(broker: Broker, harmed_broker: Broker, feed: Feed, tmp_path: Path) -> Mirrored:
    runs = LocalRuns(adding(feed.pattern, BY_SUSPENSION), broker.bootstrap_servers, tmp_path)
    topic = feed.create("v")
    for at in (0, 2, 4):
        values = VALUES[at : at + 2]
        feed.append(topic, [ProducerRecord("s", each, SENT_MS + at + n) for n, each in enumerate(values)])
        runs.run()
    make_savepoint(runs.folders, "move", who="ann", why="the other site", at="2")
    feed.expire(topic, until=2)
    assert export_savepoint(runs.handle, "move", tmp_path / "export").remark == ""
    there = Feed(harmed_broker.bootstrap_servers, feed.family)
    return Mirrored(topic, feed, there, tmp_path / "export", f"src{uuid.uuid4().hex[:8]}", tmp_path / "there")


def prove(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def refuse(runs: LocalRuns, mirrored: Mirrored, alias: str) -> tuple[str, str]:
    """Return kind and text of the only obstacle of an import."""
    with pytest.raises(Refused) as refused:
        import_savepoint(runs.handle, mirrored.folder, who="ann", why="the other site", mirror=alias)
    assert not runs.folders.root.exists() or list(runs.folders.root.iterdir()) == []
    (obstacle,) = refused.value.obstacles
    return obstacle.kind, obstacle.problem


def test_a_stream_goes_on_at_lower_offsets_of_a_topic_with_another_name(mirrored: Mirrored) -> None:
    topic = f"{mirrored.alias}.{mirrored.topic}"
    there = replace(mirrored.there, family=f"{mirrored.alias}.{mirrored.there.family}")
    assert there.create("v") == topic
    mirrored.copy(topic, 2, 6)
    runs = mirrored.stream(there.pattern)
    plan = prepare_import(runs.handle, mirrored.folder, mirror=mirrored.alias).plan
    assert [(each.topic, each.exported, each.position) for each in plan.partitions] == [(topic, 4, 2)]
    assert (plan.to_read, plan.obstacles) == (2, ())
    import_savepoint(runs.handle, mirrored.folder, who="ann", why="the other site", mirror=mirrored.alias)
    head = OutputLog(runs.folders.table).base().head
    assert head.imported is not None
    assert (head.imported.mirror, head.imported.cluster_id == head.cluster_id) == (mirrored.alias, False)
    prove(runs)
    runs.run()
    whole = folded([(at - 2, "s", value) for at, value in enumerate(VALUES[:6])])
    assert runs.rows(topic) == [row for row in whole if int(str(row[0])) >= 2]
    prove(runs)
    # A gap suspends the session, whose start had a higher offset in the first cluster than any offset here.
    mirrored.there.send(topic, [update(9, a=1), update(10, a=1), snapshot(20, a=5), update(21, a=1)])
    runs.run()
    again = folded([(6, "s", snapshot(20, a=5)), (7, "s", update(21, a=1))])
    assert runs.rows(topic) == [*(row for row in whole if int(str(row[0])) >= 2), *again]
    assert sum(row.quarantined for row in read_ledger(runs.folders.ledger)) == 2
    prove(runs)


def test_a_stream_goes_on_at_higher_offsets_of_a_topic_with_the_same_name(mirrored: Mirrored) -> None:
    topic = mirrored.there.create("v")
    for at in range(2, 6):
        mirrored.copy(topic, at, at + 1, transaction=mirrored.topic)
    runs = mirrored.stream(mirrored.there.pattern)
    copier = mirrored.there.transactional()  # MirrorMaker continues: a transaction is open
    copier.begin_transaction()
    copier.produce(topic, b"not committed yet", "s")
    assert copier.flush(60.0) == 0
    import_savepoint(runs.handle, mirrored.folder, who="ann", why="the other site", mirror=mirrored.alias)
    mirrored.there.end_transaction(copier, topic, commits=False)
    runs.run()
    whole = folded([(2 * (at - 2), "s", value) for at, value in enumerate(VALUES[:6])])
    assert runs.rows(topic) == [row for row in whole if int(str(row[0])) >= 4]
    prove(runs)


def test_a_checkpoint_tells_which_of_two_copies_is_the_place(mirrored: Mirrored) -> None:
    topic = mirrored.there.create("v")
    mirrored.copy(topic, 2, 6)
    mirrored.copy(topic, 2, 6)
    runs = mirrored.stream(mirrored.there.pattern)
    kind, problem = refuse(runs, mirrored, mirrored.alias)
    assert kind is RewindReason.POSITION
    assert f"{mirrored.topic}/0@4 in {topic} is not proven: the messages around it are alike at 2 offsets" in problem
    replace(mirrored.there, family=mirrored.alias).create("checkpoints.internal")
    servers = mirrored.there.bootstrap_servers
    append_checkpoint(servers, mirrored.alias, "another", (topic, 0), upstream=4, downstream=0)
    append_checkpoint(servers, mirrored.alias, "adding", (topic, 0), upstream=3, downstream=5)
    append_checkpoint(servers, mirrored.alias, "adding", (topic, 0), upstream=6, downstream=8)
    import_savepoint(runs.handle, mirrored.folder, who="ann", why="the other site", mirror=mirrored.alias)
    runs.run()
    whole = folded([(at + 2, "s", value) for at, value in enumerate(VALUES[:6])])
    assert runs.rows(topic) == [row for row in whole if int(str(row[0])) >= 6]
    prove(runs)


@pytest.mark.fault("F78")
def test_the_command_line_imports_from_a_mirrored_cluster_by_a_checkpoint(mirrored: Mirrored, tmp_path: Path) -> None:
    """Two copies of the topic exist: without the checkpoint, exit code and message refuse the position."""
    site = tmp_path / "site"
    (site / "assets").mkdir(parents=True)
    declared = f'stream = adding(r"{mirrored.there.pattern}", BY_SUSPENSION)'
    source = f"from tests.support.adding_stream import BY_SUSPENSION, adding\n\n{declared}\n"
    (site / "assets" / f"{mirrored.alias}.py").write_text(source)
    runs = mirrored.stream(mirrored.there.pattern)
    topic = mirrored.there.create("v")
    environment = {
        "LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": mirrored.there.bootstrap_servers,
        "LOCKSTEP_TABLE_ROOT": str(runs.folders.root),
        "LOCKSTEP_LOCAL_ROOT": str(site / "local"),
    }
    made = Platform(site, mirrored.there, runs, environment)
    command = ("savepoint", "import", "adding", str(mirrored.folder), "--mirror", mirrored.alias, "--yes")
    for _ in range(2):
        mirrored.copy(topic, 2, 6)
    refused = made.call(*command)
    assert refused.exit_code == 1
    assert f"{mirrored.topic}/0@4 in {topic} is not proven: the messages around it are alike" in refused.stderr
    other = made.call("savepoint", "import", "adding", str(mirrored.folder), "--yes")
    assert (other.exit_code, "its positions are of Kafka cluster" in other.stderr) == (1, True)
    assert "--mirror ALIAS" in other.stderr
    replace(mirrored.there, family=mirrored.alias).create("checkpoints.internal")
    append_checkpoint(mirrored.there.bootstrap_servers, mirrored.alias, "adding", (topic, 0), upstream=3, downstream=5)
    shown = made.call(*command, "--plan")
    assert "nothing refuses it" in shown.stdout, shown.output
    assert topic in shown.stdout
    planned = msgspec.json.decode(made.call(*command, "--plan", "--json").stdout)
    assert [(each["topic"], each["exported"], each["position"]) for each in planned["partitions"]] == [(topic, 4, 6)]
    assert not runs.folders.table.exists()
    done = msgspec.json.decode(made.call(*command, "--why", "site B", "--json").stdout)
    assert (done["plan"]["to_read"], done["published"]) == (2, True)
    assert made.call("run", "adding", "--available-now").exit_code == 0
    proven = made.call("verify", "adding")
    assert proven.exit_code == 0, proven.output
    whole = folded([(at + 2, "s", value) for at, value in enumerate(VALUES[:6])])
    assert runs.rows(topic) == [row for row in whole if int(str(row[0])) >= 6]


def test_what_is_not_proven_or_not_copied_is_refused_by_name(mirrored: Mirrored) -> None:
    runs = mirrored.stream(mirrored.there.pattern)
    assert refuse(runs, mirrored, "")[0] is RewindReason.CLUSTER
    kind, problem = refuse(runs, mirrored, mirrored.alias)
    assert (kind, "has no topic" in problem) == (RewindReason.TOPIC, True)
    topic = mirrored.there.create("v")
    mirrored.copy(topic, 2, 3)
    kind, problem = refuse(runs, mirrored, mirrored.alias)
    assert kind is RewindReason.POSITION
    assert f"{mirrored.topic}/0@4" in problem
    assert "none of the 1 messages from offset 0 to 1 is the last applied message" in problem
    kind, problem = refuse(mirrored.stream("other"), mirrored, mirrored.alias)
    assert (kind, "does not select" in problem) == (RewindReason.TOPIC, True)
    mirrored.copy(topic, 3, 4)
    import_savepoint(runs.handle, mirrored.folder, who="ann", why="the other site", mirror=mirrored.alias)
    mirrored.copy(topic, 4, 6)
    runs.run()
    whole = folded([(at - 2, "s", value) for at, value in enumerate(VALUES[:6])])
    assert runs.rows(topic) == [row for row in whole if int(str(row[0])) >= 2]
    prove(runs)


def test_a_position_that_had_expired_when_it_was_exported_is_not_taken_for_the_next_message(
    mirrored: Mirrored, feed: Feed, tmp_path: Path
) -> None:
    mirrored.copy(mirrored.there.create("v"), 2, 6)
    feed.expire(mirrored.topic, until=5)
    runs = LocalRuns(adding(feed.pattern, BY_SUSPENSION), feed.bootstrap_servers, tmp_path)
    said = export_savepoint(runs.handle, "move", tmp_path / "late").remark
    assert said.endswith(f"mirrored cluster: Kafka does not have the messages from {mirrored.topic}/0@4 on any more")
    late = replace(mirrored, folder=tmp_path / "late")
    kind, problem = refuse(late.stream(mirrored.there.pattern), late, mirrored.alias)
    assert (kind, "did not show the messages around it" in problem) == (RewindReason.POSITION, True)
    planned = prepare_import(late.stream(mirrored.there.pattern).handle, late.folder, mirror=mirrored.alias).plan
    assert planned.obstacles[0].next_step.startswith("export a later savepoint: ")


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_retired_topic_whose_place_is_not_proven_goes_without_where_it_is_not_read(
    mirrored: Mirrored, feed: Feed, tmp_path: Path, *, is_deleted: bool
) -> None:
    """The topic was deleted, or all its messages expired, before the export; MirrorMaker keeps its copy."""
    runs = LocalRuns(adding(feed.pattern, BY_SUSPENSION), feed.bootstrap_servers, tmp_path)
    old = feed.create("old")
    feed.send(old, session(2))
    runs.run()
    retire_topic(runs.handle, old, who="ann", why="no longer sent")
    make_savepoint(runs.folders, "later", who="ann", why="the other site")
    mirrored.copy(mirrored.there.create("v"), 2, 6)
    copies = read_source(feed.bootstrap_servers, old, 0, 3)
    append_copies(mirrored.there.bootstrap_servers, mirrored.there.create("old"), copies)
    if is_deleted:
        feed.delete(old)
    else:
        feed.expire(old, 3)
    later = replace(mirrored, folder=tmp_path / "later")
    assert export_savepoint(runs.handle, "later", later.folder).remark == ""
    planned = prepare_import(later.stream(mirrored.there.pattern).handle, later.folder, mirror=mirrored.alias).plan
    (obstacle,) = planned.obstacles
    assert (obstacle.kind, "it is retired: exclude the copy here" in obstacle.next_step) == (
        RewindReason.POSITION,
        True,
    )
    without = later.stream(rf"{mirrored.there.family}\.v")
    done = import_savepoint(without.handle, later.folder, who="ann", why="the other site", mirror=mirrored.alias)
    assert done.plan.left_out == (old,)
    assert [(each.topic, each.position) for each in done.plan.partitions] == [(mirrored.topic, 4)]
    prove(without)
