"""`binlogd dump --follow`: what commits is printed in commit order, once, over a restart too."""

from __future__ import annotations

import asyncio
import signal
import time
from itertools import islice
from pathlib import Path

from tests.support import bank
from tests.support.appliance import READY_S, Appliance, environment, run
from tests.support.program import Program

HALF, COUNT = 12, 24


def lines_until(text: str, out: Path) -> list[str]:
    """What was printed, once that is in it."""
    deadline = time.monotonic() + READY_S
    while text not in (said := out.read_text()):
        assert time.monotonic() < deadline, said[-2000:]
        time.sleep(0.05)
    return said.splitlines()


def commit(number: int) -> str:
    """What stands in the line of a commit."""
    return f'"commit_ts":{bank.commit_ts_of(number)},'


def test_what_commits_is_shown_until_ctrl_c(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path, history=bank.history())
    words = ("dump", "--config", str(appliance.config_file), "--json", "--table", "bank.ledger")
    out, err = tmp_path / "out", tmp_path / "err"
    out.touch()
    try:
        appliance.start()
        records = bank.transfers(COUNT)
        asyncio.run(bank.feed(islice(records, 2 * HALF), appliance.target))
        following = (*words, "--follow", "--from", "1")
        program = Program(following, tmp_path, environment(), out, err)
        lines_until(commit(HALF - 1), out)
        assert appliance.stop() == 0
        lines_until("no binlogd answers; what commits is shown when it does", err)
        appliance.start()
        asyncio.run(bank.feed(records, appliance.target))
        found = lines_until(commit(COUNT - 1), out)
        program.send_signal(signal.SIGINT)
        assert program.wait(READY_S) == 0
        assert found == run(tmp_path, *words).stdout.splitlines()
    finally:
        appliance.close()
