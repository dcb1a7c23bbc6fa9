"""Examples of the documents work: settings load, the producer produces, and the doctor's checks are explained."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from lockstep import NoIntegrity
from lockstep.features.localdev.producer import count_produced, create_topic
from lockstep.kafka.admin import TopicSettings
from lockstep.operations.doctor.kafka import check_fitness
from lockstep.settings import load_settings

if TYPE_CHECKING:
    from tests.integration.security.secured import Secured

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks("security.md", "toml"))))
def test_settings_of_the_document_load(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("LOCKSTEP_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    default = load_settings()
    (tmp_path / "lockstep.toml").write_text(blocks("security.md", "toml")[number])
    assert load_settings() != default


def test_the_document_shows_every_way_to_connect() -> None:
    shown = set(re.findall(r'"security.protocol" = "(\w+)"', (DOCS / "security.md").read_text()))
    assert shown == {"SASL_SSL", "SSL", "SASL_PLAINTEXT"}


def test_the_producer_of_the_document_produces(secured: Secured, topic_family: str) -> None:
    kafka = secured.plain()
    create_topic(kafka, topic_family)
    (code,) = blocks("producers.md", "python")
    names: dict[str, object] = {"Producer": Producer, "bootstrap_servers": kafka.bootstrap_servers}

    exec(code, names)  # noqa: S102  # our own document

    producer = names["producer"]
    assert isinstance(producer, Producer)
    producer.produce(topic_family, b"value", key=b"session")
    assert producer.flush(30) == 0
    assert count_produced(kafka, topic_family) == 1


def test_every_look_of_the_doctor_is_explained() -> None:
    page = (DOCS / "producers.md").read_text()
    topic = TopicSettings(topic="t", replicas=3, in_sync=3, settings={})
    explained = re.findall(
        r"^\| `([a-z.]+)` \|", page.partition("Settings of topics that the doctor checks")[2], re.MULTILINE
    )
    assert explained == [look.setting for look in check_fitness(topic, NoIntegrity(), message_bytes_max=1)]
