"""What happens in a process that is to run a module of a copy of the tree.

It is forked from one that has imported the libraries and nothing of this project: to import them
takes ten times as long as most tests do.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

BROKEN = 70
"""The exit code of what could not even be run."""
LIBRARIES = (
    "pytest",
    "_pytest.assertion.rewrite",
    "_pytest.runner",
    "pytest_asyncio",
    "pytest_timeout",
    "xdist",
    "hypothesis.strategies",
    "aiohttp.web",
    "aiomysql",
    "aiosqlite",
    "betterproto",
    "cramjam",
    "cryptography.x509",
    "google_crc32c",
    "grpclib.client",
    "grpclib.server",
    "h2.connection",
    "msgspec",
    "prometheus_client",
    "re2",
    "rich.table",
    "structlog",
    "trustme",
    "typer",
)


def run_module(place: str, said: str, arguments: Sequence[str]) -> None:
    """`python -m` in a copy of the tree, in a session of its own; ends the process."""
    os.setsid()
    with Path(said).open("wb") as out:
        for number in (1, 2):
            os.dup2(out.fileno(), number)
    own = str(Path(__file__).parents[2])
    for name in [each for each in sys.modules if each.partition(".")[0] in ("tests", "binlogd")]:
        del sys.modules[name]
    sys.path[:] = [place, *(each for each in sys.path if each not in ("", own, place))]
    os.chdir(place)
    # nothing is written beside the sources: what was compiled of a bug would outlive it
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=place, PYTHONDONTWRITEBYTECODE="1")
    module, *sys.argv[1:] = arguments
    code: object = BROKEN
    try:
        import binlogd

        if not str(binlogd.__file__).startswith(place):
            raise RuntimeError(f"the copy in {place} would run {binlogd.__file__}")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - it is printed, and the exit code tells
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
