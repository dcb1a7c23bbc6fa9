"""The proof in another process, with another hash order, agrees with the tables of the run.

Objects of this process, the order of its sets and the identity of its constants differ from those of a loaded state.
The types and values are generated.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lockstep.state.codec import StateNotOfItsType
from tests.correctness.properties import test_live_states as live
from tests.correctness.properties import test_ready_folds as ready
from tests.correctness.properties.state_types import PRELUDE
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from types import ModuleType

    from lockstep.declare.stream import AnyStream
    from tests.support.offline_stream import Sent
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
TOPIC = "kept"
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Each smaller example would need another process."""
LOADED = "from tests.correctness.properties.state_types import float_of, usable\n"
PROVE = "from tests.correctness.properties.test_new_process import main; main()"
STEPS = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 2), live.HOW), min_size=4, max_size=9)
CASE = st.one_of(
    st.tuples(st.sampled_from(ready.NAMES), ready.sources(), ready.STEPS),
    st.tuples(st.just("live"), live.sources(), STEPS),
)
Case = tuple[str, str, list[tuple[str, int, str]]]


def load_stream(folder: Path, module: str, name: str) -> tuple[ModuleType, AnyStream]:
    """Return a generated module of the folder, and its stream."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    made = importlib.import_module(module)
    return made, made.make_stream(live.CLASSES["suspending"] if name == "live" else name)


def list_messages(name: str, made: ModuleType, steps: list[tuple[str, int, str]]) -> list[tuple[str, Any]]:
    """Return the messages of a case with their keys."""
    if name == "live":
        return [(key, made.Sent(at, how)) for at, (key, _, how) in enumerate(steps)]
    return ready.list_sent(name, made, steps)


def write_table(root: Path, name: str, made: ModuleType, stream: AnyStream, steps: list[tuple[str, int, str]]) -> bool:
    """Run the stream in batches of three messages; return False if its type cannot hold a state."""
    encode = msgspec.msgpack.encode if name == "columns" else msgspec.json.encode
    sent: list[Sent] = [(key, encode(value)) for key, value in list_messages(name, made, steps)]
    offline = Offline(stream, root)
    try:
        offline.run(*({TOPIC: sent[at : at + 3]} for at in range(0, len(sent), 3)))
    except StateNotOfItsType:
        return False
    (root / "log").write_bytes(pickle.dumps((name, offline.log)))
    return True


def main() -> None:
    """Prove the tables of the folders named as arguments, in the other process."""
    for each in sys.argv[1:]:
        root = Path(each)
        name, log = pickle.loads((root / "log").read_bytes())  # noqa: S301  # written by this test
        _, stream = load_stream(root.parent, f"fold_{root.name}", name)
        report = prove(Offline(stream, root, log))
        sys.stdout.write(f"{root.name} {report.status.value} {list(report.violations)}\n")


def check_proofs(folder: Path, cases: list[Case], seed: int) -> None:
    """Write a table for each case, and prove them all in a single other process."""
    written: list[str] = []
    for case, (name, source, steps) in enumerate(cases):
        number = f"{folder.name}_{case}"
        (folder / f"fold_{number}.py").write_text(PRELUDE + LOADED + source, encoding="utf-8")
        root = folder / number
        if write_table(root, name, *load_stream(folder, f"fold_{number}", name), steps):
            written.append(str(root))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROVE, *written]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == [f"{Path(root).name} proven []" for root in written]


@settings(max_examples=2, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(cases=st.lists(CASE, min_size=6, max_size=6), seed=st.integers(0, 99))
def test_a_new_process_proves_the_tables(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case], seed: int
) -> None:
    check_proofs(tmp_path_factory.mktemp("proofs"), cases, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=25, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(cases=st.lists(CASE, min_size=6, max_size=6), seed=st.integers(0, 99))
def test_a_new_process_proves_many_more_tables(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case], seed: int
) -> None:
    check_proofs(tmp_path_factory.mktemp("proofs"), cases, seed)
