"""What a Pump may take in each state of its life, and how it gets from one to the next.

    online ─pause─▶ pausing ─▶ paused        online ─close─▶ closing ─▶ offline
                                                                └─ not safe in time ─▶ pausing ─▶ …

Commits and rollbacks are taken in every state as long as the process lives: a Pump that closes
waits for the outcomes of the prewrites it has (tidb-binlog issue 701).

Source: tidb-binlog pump/server.go, commitStatus and writeBinlog.
"""

from __future__ import annotations

from enum import Enum

from binlogd.errors import Refused


class NodeState(Enum):
    """The states of the original; their names are seen by operators."""

    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"

    @property
    def takes_prewrites(self) -> bool:
        """Whether a new transaction may begin here."""
        return self is NodeState.ONLINE


class Action(Enum):
    """What an operator may ask for."""

    PAUSE = "pause"
    CLOSE = "close"


_ASKED = {Action.PAUSE: NodeState.PAUSING, Action.CLOSE: NodeState.CLOSING}
_SETTLED = {
    NodeState.ONLINE: NodeState.PAUSED,
    NodeState.PAUSING: NodeState.PAUSED,
    NodeState.CLOSING: NodeState.OFFLINE,
}


def asked(state: NodeState, action: Action) -> NodeState:
    """The state after an operator's request. Raises Refused unless the Pump is online."""
    if state is not NodeState.ONLINE:
        raise Refused(f"cannot {action.value}: the pump is {state.value}, not online")
    return _ASKED[action]


def given_up(state: NodeState) -> NodeState:
    """The state of a Pump that was to close and must not yet: what it has is still needed, so its
    readers have to go on knowing it. The original has no such end; it waits for ever."""
    return NodeState.PAUSING if state is NodeState.CLOSING else state


def settled(state: NodeState) -> NodeState:
    """The state that a Pump ends in once everything it waited for is done."""
    return _SETTLED.get(state, state)
