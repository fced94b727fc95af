"""How gladly a Pump takes more: one number that Pumps publish and clients choose by.

Source: tidb-binlog pkg/node has the field `score`, and no release fills it.
"""

from __future__ import annotations


def score(
    *, free_bytes: int, free_bytes_min: int, log_bytes: int, queue_bytes: int, queue_bytes_max: int
) -> int:
    """100 for an empty Pump on an empty disk, 0 for one that takes nothing.

    It falls with the load (bytes that wait to be durable), and with the share of its room that
    binlogs fill already, so that with equal disks the one with less data is chosen, and with equal
    data the one with the larger disk.
    """
    room = free_bytes - free_bytes_min
    if room <= 0 or queue_bytes >= queue_bytes_max:
        return 0
    idle = 1 - queue_bytes / queue_bytes_max
    empty = room / (room + log_bytes)
    return max(1, round(100 * idle * empty))
