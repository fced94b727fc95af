"""How far each lane has come: the progress rows, the low-water mark and the plan of a restart.

Invariant. The row of a lane says exactly which changes of that lane are downstream, because it is
moved by the transaction that writes them. `commit_ts` with `piece` 0: everything up to it. With
`piece` n: everything before commit_ts, and the first n changes that this lane has of commit_ts (a
transaction too large to be written at once). So after a restart no change is lost or done twice,
also in tables without a key, however far apart the lanes are.

Why counting changes is safe: which changes a lane has, and in which order, depends on the binlogs,
on the number of lanes, and on the shape of each table, which is noted (`mysql.tables`). If one of
the latter is to change, the lanes first catch up with each other as they were, and are laid out
anew when all stand at one commit_ts.

With each checkpoint a note of it is saved, beside it and beside the lanes. A checkpoint that is
not the one noted beside it was set by somebody else, who is obeyed: all lanes begin there, as if
nothing behind it had been applied, or nothing before it missed. Otherwise a checkpoint says
nothing of the lanes: what raises one that was idle is the note beside it, which goes back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.errors import BinlogdError, ConfigError, DownstreamWentBack
from binlogd.tso import NO_TS, Tso

TABLE_NAME = "progress"
DDL_LANE = -1
"""The row that exists while a DDL is being executed."""
SAVED_LANE = -2
"""The row that repeats the commit_ts of the checkpoint as it was saved last."""
OWNER_LANE = -3
"""The row that says in its note which pipeline keeps the downstream, where one does."""
REPEATED_LANE = -4
"""The row that says up to where the data may hold already what is written to it."""


class LanePosition(NamedTuple):
    """See the invariant of the module."""

    commit_ts: Tso
    piece: int = 0

    @property
    def whole_ts(self) -> Tso:
        """Every transaction up to here is applied, as far as this lane is concerned."""
        return self.commit_ts if self.piece == 0 else Tso(self.commit_ts - 1)

    def is_before(self, other: LanePosition) -> bool:
        """Whether less is applied here than there."""
        return (self.whole_ts, self.piece) < (other.whole_ts, other.piece)

    def __str__(self) -> str:
        """For people."""
        return str(self.commit_ts) + (f" (change {self.piece})" if self.piece else "")


class PendingDdl(NamedTuple):
    """A DDL that was begun and not seen to end.

    `step` of its statements are known to be done; `before` is a fingerprint of what the next was
    to change; `session_id` is the connection that may still be at it. `part` counts, from 1, the
    parts of a statement that is done part by part; 0 while it is tried as a whole.
    """

    commit_ts: Tso
    step: int
    session_id: int
    before: str
    part: int = 0


class Restart(NamedTuple):
    """What the progress rows and the checkpoint say together."""

    lanes: tuple[LanePosition, ...]
    """In the number in which they were stored; empty where there is no progress at all."""
    ddl: PendingDdl | None
    is_set_back: bool = False
    """The checkpoint is before the one that was saved: everything begins behind it."""
    repeated_ts: Tso = NO_TS
    """Up to here what is written may be there already: a copy was loaded, of whatever moment."""
    is_first: bool = False
    """There is no progress: whatever the data holds came from somebody else."""

    @property
    def low_ts(self) -> Tso:
        """Every lane has everything up to here; nothing has been applied at all: NO_TS."""
        return min((lane.whole_ts for lane in self.lanes), default=NO_TS)

    @property
    def high_ts(self) -> Tso:
        """No lane has anything beyond; where low and high differ, lanes must catch up."""
        return max((lane.commit_ts for lane in self.lanes), default=NO_TS)

    @property
    def is_level(self) -> bool:
        """Whether all lanes stand at the same commit_ts, after a whole transaction."""
        return self.low_ts == self.high_ts


Row = tuple[int, int, int, int, int, str]
"""lane, lanes, commit_ts, piece, session_id, note; of a DDL lanes is its part, piece its step."""


def restart_of(
    rows: Iterable[Row], checkpoint: Checkpoint | None, elsewhere: Tso | None = None
) -> Restart:
    """The plan of a restart. Raises ConfigError. `elsewhere` is given where the checkpoint is kept
    on another server than the rows: what is noted there of the checkpoint, NO_TS for nothing."""
    lanes: dict[int, LanePosition] = {}
    counts: set[int] = set()
    ddl, saved_ts, repeated_ts = None, NO_TS, NO_TS
    stored_ts = checkpoint.commit_ts if checkpoint else NO_TS
    for lane, count, commit_ts, piece, session_id, note in rows:
        if lane == DDL_LANE:
            ddl = PendingDdl(Tso(commit_ts), piece, session_id, note, count)
        elif lane == SAVED_LANE:
            saved_ts = Tso(commit_ts)
        elif lane == REPEATED_LANE:
            repeated_ts = Tso(commit_ts)
        elif lane != OWNER_LANE:
            lanes[lane] = LanePosition(Tso(commit_ts), piece)
            counts.add(count)
    noted_ts = elsewhere or saved_ts  # nothing there: a version that noted it here alone
    is_gone = checkpoint is None and elsewhere == NO_TS
    if stored_ts < noted_ts and not is_gone:
        held_ts = max([repeated_ts, *(each.commit_ts for each in lanes.values())])
        return Restart((LanePosition(stored_ts),), None, is_set_back=True, repeated_ts=held_ts)
    if not lanes and stored_ts and stored_ts == elsewhere:
        raise ConfigError(
            f"the checkpoint, which is kept on another server than the data, is at {stored_ts}, but"
            f" where the data is there are no rows in {TABLE_NAME}: it is another server, or it"
            " lost what it had; load a copy of the data and give its commit_ts to `binlogd"
            " checkpoint --set`"
        )
    if not lanes:
        begun = (LanePosition(stored_ts),) if checkpoint else ()
        return Restart(begun, None, repeated_ts=repeated_ts, is_first=True)
    if counts != {len(lanes)} or set(lanes) != set(range(len(lanes))):
        raise ConfigError(
            f"the progress rows are of lanes {sorted(lanes)} where {sorted(counts)} are said to be;"
            f" delete the rows of this cluster from {TABLE_NAME} to start from the checkpoint"
        )
    is_order = stored_ts > noted_ts and elsewhere != NO_TS
    floor = LanePosition(stored_ts if is_order else saved_ts)
    positions = (lanes[lane] for lane in range(len(lanes)))
    return Restart(
        tuple(each if each.whole_ts >= floor.commit_ts else floor for each in positions),
        ddl,
        repeated_ts=repeated_ts,
    )


def went_back(
    server: str, found: Sequence[LanePosition], left: Sequence[LanePosition]
) -> BinlogdError | None:
    """What to raise where a lane is behind where this process left it, or lanes are missing; None
    where each stands there, or further.

    For lanes that are at work: one that went on tells nothing.
    """
    if len(found) != len(left):
        return not_as_left(server, found, left)
    is_behind = any(map(LanePosition.is_before, found, left))
    return DownstreamWentBack(server, _shown(found), _shown(left)) if is_behind else None


def not_as_left(
    server: str, found: Sequence[LanePosition], left: Sequence[LanePosition]
) -> BinlogdError:
    """What to raise where lanes that are at rest are not where this process left them.

    Who is further than we came was moved by somebody else at work, and going on would be a quarrel;
    everything else is a downstream that lost something.
    """
    furthest = max(left, key=lambda each: (each.whole_ts, each.piece))
    if any(furthest.is_before(each) for each in found):
        return ConfigError(
            f"the progress of a lane at {server}, {_shown(found)}, is further than this process"
            f" came, {_shown(left)}: another Drainer of the same upstream writes to this"
            " downstream, or a server is back that had more than the one that took its place",
            todo="stop the other Drainer or give it a syncer.to.checkpoint.schema of its own; where"
            " there is none, start again: replication goes on where this server is",
        )
    return DownstreamWentBack(server, _shown(found), _shown(left))


def _shown(positions: Sequence[LanePosition]) -> str:
    found = ", ".join(sorted({str(each) for each in positions}))
    return f"commit_ts {found}" if found else "no place at all"


def low_water(translated_ts: Tso, first_waiting: Iterable[Tso]) -> Tso:
    """Everything up to here is applied. `first_waiting` are the first commit_ts of what each lane
    has not finished."""
    return min([translated_ts, *(Tso(ts - 1) for ts in first_waiting)])
