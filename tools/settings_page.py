"""Makes docs/settings.md: every setting, from the docstrings of `lockstep.settings`.

.venv/bin/python tools/settings_page.py > docs/settings.md
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from pydantic import BaseModel

from lockstep.orchestration.table_asset import read_field_descriptions
from lockstep.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = """# Settings

Settings are the options of an installation; the options of a stream are in its declaration ([reference.md](reference.md)). Settings are read from `lockstep.toml` in the working folder, or from the file that `LOCKSTEP_SETTINGS` names. An environment variable replaces a value of the file: `LOCKSTEP_` and the key in capitals, with two underscores for each dot, such as `LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS`. A wrong name or value is an error. `lockstep settings` prints each value in force, its default and its origin, without secrets.

```toml
table_root = "/data/lockstep/tables"
local_root = "/var/lib/lockstep"

[kafka]
bootstrap_servers = "kafka-1.example:9092,kafka-2.example:9092"

[kafka.options]                      # properties of librdkafka
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "lockstep"

[kafka.secrets]                      # where the values are, never the values
"sasl.password" = "file:/run/secrets/kafka-password"

[spark]
master = "local[4,3]"

[schedules]
compaction = "10 * * * *"
```

A table in one variable is JSON: `LOCKSTEP_KAFKA__OPTIONS='{"client.rack": "eu-central-1a"}'`.

A secret is a reference to the place of its value: `file:` and an absolute path, or `env:` and the name of a variable ([security.md](security.md)).
"""  # noqa: E501  # a line of the page is a paragraph
OF_THE_MACHINE = {"spark.master": "local[CORES,3]", "local_root": "$TMPDIR/lockstep"}
"""Defaults that differ between machines."""


def page() -> str:
    """The page."""
    groups = {name: field.default for name, field in Settings.model_fields.items()}
    plain = [name for name, default in groups.items() if not isinstance(default, BaseModel)]
    parts = [HEAD, "## Tables", "", *_table(Settings, "", plain)]
    for name, default in groups.items():
        if isinstance(default, BaseModel):
            parts += ["", f"## {name}", "", *_intro(type(default)), "", *_table(type(default), f"{name}.")]
    return "\n".join(parts) + "\n"


def _intro(model: type[BaseModel]) -> Iterator[str]:
    """The docstring up to its attributes, one line a paragraph."""
    text, _, _ = inspect.getdoc(model).partition("\n\nAttributes:")  # type: ignore[union-attr]  # each has one
    yield "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _table(model: type[BaseModel], prefix: str, names: list[str] | None = None) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    meanings = read_field_descriptions(model)
    for name in names or list(model.model_fields):
        key = f"{prefix}{name}"
        default = OF_THE_MACHINE.get(key, model.model_fields[name].default)
        shown = f"`{default}`" if default not in ("", None) else "none"
        yield f"| `{key}` | {shown} | {meanings[name]} |"


if __name__ == "__main__":
    sys.stdout.write(page())
