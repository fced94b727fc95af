"""What the real programs of a cluster said to each other, call by call.

Files `<who>-to-<whom>.jsonl.gz` with an object a line: `call` numbers the RPCs, `dir` is start
(with `method`), request, response, client-close, end (with `status`) or http-response; `hex` is the
message. Recorded from PD 6.6, TiDB 6.6, the original Pump, Drainer and binlogctl.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.recordings_reader import RECORDINGS, info
from tests.support.tried import tried

WIRE = RECORDINGS / "wire"
_PROGRAMS = {
    "tidb": "TiDB, as recorded",
    "pd": "PD, as recorded",
    "pump": "Go Pump, as recorded",
    "drainer": "Go Drainer, as recorded",
    "binlogctl": "binlogctl, as recorded",
}
"""Those of the recording that are real: its TiKV was a stand-in."""
_CUT = "..."  # what follows in a long message is not in the recording


@dataclass
class Call:
    """One RPC: what was sent and what came back, each in order."""

    method: str
    metadata: dict[str, list[str]]
    requests: list[bytes] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)
    status: str = ""


def say_whose(*programs: str) -> None:
    """That a test has to do with what these said."""
    versions = info(WIRE)["versions"]
    for each in sorted({*programs} & set(versions)):
        tried(_PROGRAMS[each], versions[each])


def calls(who: str, whom: str, service: str = "") -> Sequence[Call]:
    """The calls of one program to another, by their start; those of one service alone."""
    found: dict[int, Call] = {}
    say_whose(who, whom)
    with gzip.open(WIRE / f"{who}-to-{whom}.jsonl.gz", "rt") as lines:
        for line in lines:
            said = json.loads(line)
            message = bytes.fromhex(said.get("hex", "").removesuffix(_CUT))
            match said["dir"]:
                case "start":
                    found[said["call"]] = Call(said["method"], said["metadata"])
                case "request":
                    found[said["call"]].requests.append(message)
                case "response":
                    found[said["call"]].responses.append(message)
                case "end":
                    found[said["call"]].status = said["status"]
    return [call for call in found.values() if call.method.startswith(f"/{service}")]
