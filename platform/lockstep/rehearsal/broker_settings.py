"""The settings of the rehearsal's Kafka: server and log, as the properties files that it reads. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# One node, no waiting, little memory. Each can be overridden by `Broker.start(settings=...)`.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # After a kill -9 a new process waits until the old one's session has ended (9 s by default).
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "file.delete.delay.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.io.buffer.size": "65536",
        "log.index.size.max.bytes": "1048576",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
)

LOG_SETTINGS = """rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


def reachable(listeners: Mapping[str, str], protocols: Mapping[str, str], controller: str) -> dict[str, str]:
    """Where clients and the controller reach the node.

    Args:
        listeners: Address of each listener for clients, by name.
        protocols: Security protocol of those that have one.
        controller: Address of the controller.
    """
    spoken = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **protocols}
    clients = [f"{name}://{address}" for name, address in listeners.items()]
    return {
        "listeners": ",".join([*clients, f"CONTROLLER://{controller}"]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in spoken.items()),
        "controller.quorum.voters": f"1@{controller}",
    }


def log_settings(levels: Mapping[str, str]) -> str:
    """Warnings and worse on the console; single loggers at levels of their own."""
    named = [
        f"logger.{number}.name = {name}\nlogger.{number}.level = {level}\n"
        for number, (name, level) in enumerate(levels.items())
    ]
    return LOG_SETTINGS + "".join(named)


def as_properties(settings: Mapping[str, str]) -> str:
    """As Java's properties file, in which a backslash begins an escape."""
    return "".join("{}={}\n".format(name, value.replace("\\", "\\\\")) for name, value in settings.items())
