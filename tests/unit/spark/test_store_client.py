"""Spark reads tables in an object store through Hadoop's client, with the settings of lockstep's own clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.settings import SparkSettings
from lockstep.spark.session import make_spark_properties

CLIENT = "spark.hadoop.fs.s3"
ENDPOINT = "http://127.0.0.1:9000"
REGION = "eu-north-1"


def list_client_properties(tables: Path) -> dict[str, str]:
    properties = make_spark_properties(SparkSettings(), tables=tables)
    assert ("hadoop-aws" in properties["spark.jars"]) is any(name.startswith(CLIENT) for name in properties)
    return {name.removeprefix(CLIENT): value for name, value in properties.items() if name.startswith(CLIENT)}


def test_spark_has_the_endpoint_and_the_region_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    monkeypatch.setenv("AWS_REGION", REGION)
    assert list_client_properties(Path("s3://bucket/tables")) == {
        ".impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
        "a.endpoint": ENDPOINT,
        "a.path.style.access": "true",
        "a.endpoint.region": REGION,
    }


def test_tables_in_a_folder_need_no_client(tmp_path: Path) -> None:
    assert list_client_properties(tmp_path) == {}
