"""Dagster's web server, which answers its own pages and programs of this machine, and no page of another site.

    python -m lockstep.orchestration.web_server ARGUMENTS OF dagster-webserver

Started by Dagster's own command, it runs a mutation that arrives as a link or a form of any page (request_guard.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_webserver import cli
from dagster_webserver.webserver import DagsterWebserver

from lockstep.orchestration.request_guard import RequestGuard
from lockstep.orchestration.request_user import RequestUser, add_user_tags
from lockstep.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    AnyWebserver = DagsterWebserver[Any, Any]


def add_guard(origins: tuple[str, ...], user_header: str = "") -> None:
    """Guard each application that Dagster makes in this process from now on, and note the users of its requests."""
    create_unguarded = DagsterWebserver.create_asgi_app

    def create_guarded(server: AnyWebserver, **options: object) -> RequestGuard:
        application: Any = create_unguarded(server, **options)
        if user_header:
            application = RequestUser(application, user_header)
        return RequestGuard(application, origins)

    DagsterWebserver.create_asgi_app = create_guarded  # type: ignore[method-assign,assignment]  # Dagster has no hook


def main() -> None:
    """Serve until a signal."""
    web = load_settings().web
    add_guard(web.origins, web.user_header)
    if web.user_header:
        add_user_tags()
    serve: Callable[[], None] = cli.main
    serve()


if __name__ == "__main__":
    main()
