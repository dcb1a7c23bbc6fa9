"""Names that are made from two legal names never collide: in Dagster, in SQL and in folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, Definitions
from hypothesis import given
from hypothesis import strategies as st

from jobs.compaction import compaction_schedules
from jobs.derived import derived_schedule
from jobs.export import export_schedules
from jobs.housekeeping import housekeeping_schedules
from jobs.quality import checks_schedules
from jobs.rotation import rotation_schedules
from jobs.streaming import streaming_job
from lockstep import Topics
from lockstep.declare.naming import NAME
from lockstep.derived import Derived, Export
from lockstep.errors import DeclarationError
from lockstep.orchestration import names
from lockstep.orchestration.definitions import make_assets, make_stream_checks
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from tests.support.adding_stream import adding
from tests.support.derived_tables import keep_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lockstep.declare.stream import AnyStream

WORDS = ["orders", "minor", "table", "checks", "rules", "stream", "schedule", "compaction", "housekeeping", "export"]
WORDS += ["derive", "topics", "ledger", "rotation", "health", "supervisor", "dagster", "pruning", "all", "a", "1"]
LEGAL = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("_".join).filter(NAME.fullmatch)
ANY = st.lists(st.sampled_from([*WORDS, "", "_"]), min_size=1, max_size=5).map("_".join)
ADDING = replace(adding(r"t\..+"), export=Export())
SCHEDULES = (compaction_schedules, housekeeping_schedules, checks_schedules, export_schedules, rotation_schedules)


def make_stream(name: str) -> AnyStream:
    """Return a stream with all parts."""
    return replace(ADDING, name=name, topics=Topics(pattern=rf"{name}\..+"))


def find_operation(key: AssetKey) -> str:
    """Return the step that makes an asset."""
    return key.to_python_identifier()


def list_made(name: str) -> dict[str, list[str]]:
    """Return the names that are made from the name of a stream, by the set in which they must be unique."""
    stream = make_stream(name)
    assets = names.list_all_assets(stream)
    return {
        "jobs and steps": [*names.list_all_jobs(stream), names.name_checks_step(stream), *map(find_operation, assets)],
        "schedules and sensors": list(names.list_all_schedules(stream)),
        "partitions": [names.make_topics_partitions(stream)],
        "assets": [key.to_user_string() for key in assets],
        "tables in SQL": [name, f"{name}__all"],
    }


FIXED = {
    "jobs and steps": [names.PRUNING_JOB],
    "schedules and sensors": [
        names.STREAM_TOPICS,
        names.STREAM_SUPERVISOR,
        names.STREAM_HEALTH,
        names.name_schedule(names.PRUNING_JOB),
    ],
}


@given(st.sets(LEGAL, min_size=1, max_size=2))
def test_names_of_streams_never_meet(begun: set[str]) -> None:
    chosen = begun | {longer for name in begun for word in WORDS if NAME.fullmatch(longer := f"{name}_{word}")}
    made = Counter((kind, each) for kind, listed in FIXED.items() for each in listed)
    for name in chosen:
        made.update((kind, each) for kind, listed in list_made(name).items() for each in listed)
    assert [place for place, times in made.items() if times > 1] == []


@given(ANY)
def test_a_name_is_legal_or_its_declaration_says_why(name: str) -> None:
    words = name.split("_")
    is_legal = all(words) and words[0][0].isalpha() and len(name) <= 63
    if is_legal:
        assert make_stream(name).name == name
        return
    with pytest.raises(DeclarationError, match=r"Stream\.name = .*single underscores"):
        make_stream(name)


def load(streams: Iterable[AnyStream], derived: Iterable[Derived], settings: Settings) -> Definitions:
    """Return the definitions of a platform, as `definitions.py` makes them."""
    streams = tuple(streams)
    derived = tuple(derived)
    return Definitions(
        assets=make_assets(streams, derived, settings, owners=("team:data",)),
        asset_checks=[check for stream in streams for check in make_stream_checks(stream, settings)],
        jobs=[streaming_job(stream) for stream in streams],
        schedules=[
            *(schedule for stream in streams for make in SCHEDULES for schedule in make(stream, settings)),
            *(derived_schedule(each) for each in derived),
        ],
        resources={"spark": SparkResource()},
    )


def test_streams_whose_names_begin_alike_load_together(tmp_path: Path) -> None:
    """Names such as `orders_minor` and `orders_table` must not prevent the load of the whole code location."""
    ends = ["minor", "table", "checks", "rules", "compaction", "stream", "rotation", "schedule", "minor_schedule"]
    streams = [make_stream(name) for name in ("orders", *(f"orders_{end}" for end in ends))]
    derived = [Derived(name=f"orders_{end}", sources=[streams[0]], derive=keep_rows) for end in ("derive", "all")]
    repository = load(streams, derived, Settings(table_root=tmp_path)).get_repository_def()
    wanted = {job for stream in streams for job in names.list_all_jobs(stream)}
    wanted |= {names.name_derived_job(each) for each in derived}
    assert {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")} == wanted
