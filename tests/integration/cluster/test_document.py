"""The settings in docs/cluster.md are valid and reach Spark."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lockstep.settings import load_settings
from lockstep.spark.session import ON_A_CLUSTER, make_spark_properties

DOCUMENT = Path(__file__).parents[3] / "docs" / "cluster.md"
SNIPPETS = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.parametrize(("snippet", "master"), list(zip(SNIPPETS, ("spark://", "yarn", "k8s://"), strict=True)))
def test_settings_of_the_document_are_loaded_and_reach_spark(
    snippet: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lockstep.toml").write_text(snippet)
    settings = load_settings()
    properties = make_spark_properties(settings.spark)
    assert settings.spark.master.startswith(master)
    assert settings.table_root == Path("/shared/lockstep/tables")
    assert settings.spark.options.items() <= properties.items()
    assert (ON_A_CLUSTER | settings.spark.options).items() <= properties.items()
