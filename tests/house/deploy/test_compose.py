"""A compose client reads docker-compose.yml and its mounted files; Dagster reads its own configuration."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs need a separate package, for one call
from dagster._core.instance.ref import InstanceRef
from sqlalchemy import make_url

from lockstep.declare.options import Limits
from lockstep.settings import OTHER_VARIABLES, Settings
from tests.support.spark_cluster import CLOSED_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
VARIABLE = "DAGSTER_POSTGRES_PASSWORD"
PINNED = re.compile(r"[\w./-]+:\d+(\.\d+)+(-\w+)?")
SECONDS = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


def client() -> list[str]:
    """Return the compose client of this machine; skip the test without a client."""
    if shutil.which("docker") is not None:
        new = ["docker", "compose"]
        if subprocess.run([*new, "version"], capture_output=True, check=False).returncode == 0:
            return new
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    pytest.skip("not run: this machine has neither `docker compose` nor `docker-compose`")


def resolved(environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the client's configuration of the file, with these variables and without this machine's .env."""
    (folder / "env").touch()
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [*client(), "--file", str(ROOT / "docker-compose.yml"), "--env-file", str(folder / "env"), "config"]
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=False, cwd="/")


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    said = resolved({VARIABLE: "x"}, tmp_path_factory.mktemp("compose"))
    assert said.returncode == 0, said.stderr
    loaded: dict[str, Any] = yaml.safe_load(said.stdout)
    return loaded


def test_it_holds_every_part_of_the_platform(compose: dict[str, Any]) -> None:
    workers = {"spark-master", "spark-worker-1", "spark-worker-2"}
    dagster = {"code", "daemon", "webserver", "webserver-readonly"}
    assert (
        compose["services"].keys() == {"kafka", "postgres", "proxy", "feed", "metrics", "console"} | workers | dagster
    )


def test_without_a_password_it_is_refused_and_says_what_to_set(tmp_path: Path) -> None:
    said = resolved({}, tmp_path)
    assert said.returncode != 0
    assert VARIABLE in said.stderr


def test_every_image_is_pinned_every_service_has_a_health_check_and_none_is_root() -> None:
    for name, service in read_services().items():
        assert PINNED.fullmatch(service["image"]), name
        assert service["healthcheck"]["test"], name
        own = service["image"].startswith("lockstep:")
        assert own or service["user"] not in {"", "root", "0"}, name
    users = re.findall(r"^USER (\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert users == ["lockstep"]


def test_the_log_of_every_container_is_bounded() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    unbounded = [name for name, service in services.items() if "max-size" not in service["logging"]["options"]]
    assert unbounded == []


def test_only_the_proxy_is_reached_from_outside_and_only_on_loopback(compose: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert published.keys() == {"proxy"}
    hosts = [port.rpartition(":")[0] if isinstance(port, str) else port["host_ip"] for port in published["proxy"]]
    assert [host.split(":")[0] for host in hosts] == ["127.0.0.1", "127.0.0.1"]


def read_services() -> dict[str, Any]:
    """Return the file's services, read without a compose client."""
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def test_every_published_port_is_on_loopback() -> None:
    published = {name: service["ports"] for name, service in read_services().items() if "ports" in service}
    assert published.keys() == {"proxy"}
    assert [port for port in published["proxy"] if not port.startswith("127.0.0.1:")] == []
    assert not any("network_mode" in service for service in read_services().values())


def test_the_master_takes_no_programs_and_ends_no_application_by_a_link() -> None:
    options = read_services()["spark-master"]["environment"]["SPARK_DAEMON_JAVA_OPTS"].split()
    assert set(CLOSED_OPTIONS.split()) <= set(options)


def test_the_web_servers_check_who_asks_and_hear_the_host_that_the_browser_named() -> None:
    for name in ("webserver", "webserver-readonly"):
        command = read_services()[name]["command"]
        assert command[:3] == ["python", "-m", "lockstep.orchestration.web_server"]
        assert importlib.util.find_spec(command[2]) is not None
    assert "proxy_set_header   Host       $http_host;" in (ROOT / "deploy" / "proxy.conf").read_text()


def test_a_container_with_runs_gets_longer_to_end_than_a_stream_takes(compose: dict[str, Any]) -> None:
    for name in ("code", "spark-worker-1", "spark-worker-2"):
        found = SECONDS.match(str(compose["services"][name]["stop_grace_period"]))
        assert found is not None
        minutes, seconds = (int(part or 0) for part in found.groups())
        assert minutes * 60 + seconds > 2 * Limits().stop_timeout_seconds


def test_what_must_outlive_a_container_lies_in_a_named_volume(compose: dict[str, Any]) -> None:
    assert compose["volumes"].keys() == {"kafka", "postgres", "dagster", "tables"}
    tables = [name for name, service in compose["services"].items() if "/data/tables" in str(service.get("volumes"))]
    assert {"code", "spark-worker-1", "spark-worker-2"} <= set(tables)


def test_its_variables_are_settings(compose: dict[str, Any]) -> None:
    named = {variable for service in compose["services"].values() for variable in service.get("environment", {})}
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields} | set(OTHER_VARIABLES)
    assert {name.partition("__")[0] for name in named if name.startswith("LOCKSTEP_")} <= known


def test_no_secret_stands_in_the_files() -> None:
    named = (ROOT / "docker-compose.yml", ROOT / "deploy" / "dagster-postgres.yaml")
    lines = [line.strip() for path in named for line in path.read_text().splitlines() if "assword" in line]
    values = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("password:", "POSTGRES_PASSWORD:"))]
    assert all(value == "" or value.startswith("${") for value in values)


def test_what_the_files_name_is_there(compose: dict[str, Any]) -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    assert (ROOT / "deploy" / "proxy.conf").is_file()
    assert all(Path(secret["file"]).parent.name == "secrets" for secret in compose["secrets"].values())


def test_what_the_image_calls_of_the_library_is_there() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    calls = re.findall(r"from (lockstep\.[\w.]+) import (\w+); \2\(", text)
    assert [name for module, name in calls if not hasattr(importlib.import_module(module), name)] == []
    assert len(calls) == text.count("from lockstep")


def test_dagster_takes_the_configuration_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "x")
    parts = ("dagster.yaml", "dagster-postgres.yaml")
    (tmp_path / "dagster.yaml").write_text("".join((ROOT / "deploy" / part).read_text() for part in parts))
    instance = InstanceRef.from_dir(str(tmp_path))
    assert instance.run_storage_data is not None
    assert instance.run_storage_data.class_name == "DagsterPostgresStorage" or "postgres" in str(instance.storage_data)
    assert make_url("postgresql://postgres/dagster").get_dialect().import_dbapi() is not None  # as Dagster writes it
    assert type(instance.compute_log_manager).__name__ == "LocalComputeLogManager"
    assert type(instance.local_artifact_storage).__name__ == "LocalArtifactStorage"


def test_the_code_server_ends_its_runs_and_what_they_need_ends_after_it(compose: dict[str, Any]) -> None:
    code = compose["services"]["code"]
    assert code["command"][:3] == ["python", "-m", "lockstep.orchestration.code_server"]
    assert importlib.util.find_spec(code["command"][2]) is not None
    assert {"kafka", "postgres", "spark-worker-1", "spark-worker-2"} <= set(code["depends_on"])
