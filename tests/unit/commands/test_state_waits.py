"""A node has ended when its files are its own no more: whoever copies or removes them then may."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.commands import state
from binlogd.errors import NotRunning, Unavailable
from binlogd.settings.config import Config
from binlogd.settings.setup import Setup


@pytest.fixture(autouse=True)
def _no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(setup: Setup) -> None:
        raise NotRunning("127.0.0.1:8250", "nobody listens")

    monkeypatch.setattr(state, "get_status", nobody)
    monkeypatch.setattr(state, "_POLL_S", 0.0)


async def test_a_node_that_lets_go_of_its_files_has_ended() -> None:
    looks = [True, True, False]
    said = await state.wait_for(
        Setup(Config()), "pause", lambda: looks.pop(0), drainer=False, wait_s=60
    )
    assert "the node has ended" in said
    assert looks == []


async def test_a_node_that_keeps_its_files_has_not_ended() -> None:
    with pytest.raises(Unavailable, match="not done after"):
        await state.wait_for(Setup(Config()), "pause", lambda: True, drainer=False, wait_s=0.05)


@pytest.mark.parametrize("words", [["health"], ["state", "pause"]])
def test_no_wait_is_without_end(words: list[str]) -> None:
    for wait in ("inf", "1e9"):
        refused = CliRunner().invoke(command_line([words[0]]), [*words, "--wait", wait])
        assert refused.exit_code == 2
        assert "is not in the range" in refused.output
