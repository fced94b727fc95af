"""A server as a node has it, over parts that keep nothing."""

from __future__ import annotations

from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.routes.application import application
from binlogd.serving.routes.events import Hub, event
from binlogd.serving.routes.guard import Guard
from binlogd.serving.server import Server
from tests.integration.serving.test_service import CLUSTER, Operations
from tests.support.memory_pump import Cluster, MemoryPump, nothing_to_do


def server() -> Server:
    """Not started."""
    service = PumpService(MemoryPump(), Cluster(CLUSTER), None)
    guard = Guard(lambda: "a-token-of-the-searches")
    routes = application(Operations(), guard, Hub(lambda: event("past", b"[]")))
    return Server([service, CisternService(nothing_to_do)], routes, sinks=service.sinks())
