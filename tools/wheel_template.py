"""Puts into a wheel what `lockstep init` writes; an editable installation reads it from the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TEMPLATE = ("definitions.py", "workspace.yaml", "deploy/dagster.yaml", "jobs", "sensors")


class TemplateHook(BuildHookInterface[Any]):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # pyright: ignore[reportImplicitOverride]  # a build has hatchling only
        """Add the files to a wheel."""
        if version == "standard":
            root = Path(self.root)
            build_data["force_include"] |= {str(root / name): f"lockstep/template/{name}" for name in TEMPLATE}
