"""What the web server of Dagster is asked: whether all is well, and to launch a job. Over HTTP, as its UI does."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER_SECONDS = 20.0

HEALTH = """{
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries {
    name locationOrLoadError { __typename ... on PythonError { message } } } } }
}"""
UNFINISHED = """{ runsOrError(filter: {statuses: [STARTING, STARTED, CANCELING]}) {
  ... on Runs { results { runId jobName } } } }"""
STATUS = """query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"""
LAUNCH = """mutation ($job: String!, $location: String!, $tags: [ExecutionTag!]!) {
  launchRun(executionParams: {
    selector: {repositoryLocationName: $location, repositoryName: "__repository__", jobName: $job},
    mode: "default", executionMetadata: {tags: $tags}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on Error { message } } }"""


class Run(msgspec.Struct, frozen=True, rename="camel"):
    """A run that Dagster holds for alive."""

    run_id: str
    job_name: str


class _Daemon(msgspec.Struct, rename="camel"):
    daemon_type: str
    required: bool
    healthy: bool | None


class _Location(msgspec.Struct, rename="camel"):
    name: str
    location_or_load_error: dict[str, str] | None


class _Launched(msgspec.Struct):
    run: dict[str, str] | None = None
    message: str = ""


class Console:
    """Dagster's web server at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def troubles(self) -> list[str]:
        """What keeps Dagster from working, in words; empty when all is well."""
        try:
            data = self.ask(HEALTH, {})
        except (OSError, msgspec.DecodeError) as error:
            return [f"the web server does not answer yet ({error})"]
        daemons = msgspec.convert(data["instance"]["daemonHealth"]["allDaemonStatuses"], list[_Daemon])
        locations = msgspec.convert(data["workspaceOrError"]["locationEntries"], list[_Location])
        sick = [
            f"daemon {each.daemon_type} does not work yet" for each in daemons if each.required and not each.healthy
        ]
        return sick + [f"code location {each.name}: {why}" for each in locations if (why := _why_not(each))]

    def unfinished(self) -> list[Run]:
        """Runs that Dagster holds for alive."""
        return msgspec.convert(self.ask(UNFINISHED, {})["runsOrError"]["results"], list[Run])

    def launch(self, job: str, location: str, tags: Mapping[str, str]) -> str:
        """Launch a job; the id of its run.

        Raises:
            LockstepError: Dagster refused.
        """
        listed = [{"key": key, "value": value} for key, value in tags.items()]
        said = self.ask(LAUNCH, {"job": job, "location": location, "tags": listed})
        launched = msgspec.convert(said["launchRun"], _Launched)
        if launched.run is None:
            raise LockstepError(f"Dagster did not launch {job}: {launched.message}", next_step=f"see {self.address}")
        return launched.run["runId"]

    def failed(self, run: str) -> bool:
        """Whether a run has failed."""
        return bool(self.ask(STATUS, {"run": run})["runOrError"].get("status") == "FAILURE")

    def ask(self, query: str, variables: Mapping[str, object]) -> dict[str, Any]:
        """Ask anything that Dagster's GraphQL answers; gives its `data`.

        Raises:
            LockstepError: The question is wrong.
        """
        body = msgspec.json.encode({"query": query, "variables": variables})
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/graphql", body, headers)  # noqa: S310  # our own loopback address
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                said = msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:  # a question that is wrong is answered as one, with the reason
            said = {"errors": error.read().decode(errors="replace")}
        if "errors" in said:
            raise LockstepError(f"Dagster does not understand: {said['errors']}", next_step="report it with this text")
        return dict(said["data"])


def _why_not(location: _Location) -> str:
    """Why a code location is not loaded; empty when it is."""
    loaded = location.location_or_load_error
    if loaded is None:
        return "loading"
    return loaded.get("message", "") if loaded["__typename"] == "PythonError" else ""
