"""Looking for a transaction in the log of a running Pump, from beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.errors import ConfigError, Refused, Unavailable
from binlogd.host.child import Died, answer_of, answered
from binlogd.serving.answers import Question
from binlogd.serving.finder import Finder
from binlogd.tso import MAX_TS, Tso
from tests.support.appliance import Appliance
from tests.support.pump_world import eventually
from tests.support.shop import CLUSTER_ID, HOSTILE, Shop

PYTHON = sys.executable


@dataclass(frozen=True)
class Scene:
    shop: Shop
    finder: Finder
    machine: Appliance

    async def find(self, **question: Any) -> dict[str, Any]:
        found = await self.finder.find(Question(**question), up_to=self.shop.changes[-1])
        document: dict[str, Any] = msgspec.to_builtins(found)
        return document

    async def write(self, written: Sequence[tuple[bytes, bytes]]) -> None:
        async with PumpClient(*self.machine.target, cluster_id=CLUSTER_ID) as client:
            for prewrite, commit in written:
                await client.write(prewrite)
                await client.write(commit)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Twenty orders, of which the third was paid and cancelled."""
    shop = Shop(1_700_000_000_000)
    machine = Appliance(tmp_path_factory.mktemp("finder"), history=shop.history())
    machine.start()
    made = Scene(shop, Finder([machine.data_dir]), machine)
    written = [*shop.ddls(), *(shop.make(n, f"customer {n}") for n in range(1, 21))]
    asyncio.run(made.write([*written, shop.pay(3), shop.cancel(3), shop.make(99, HOSTILE)]))
    machine.wait_until_applied(shop.changes[-1])
    yield made
    machine.close()


def cells(row: dict[str, Any], side: str) -> dict[str, str]:
    return {each["name"]: each[side] for each in row["columns"]}


async def test_by_commit_ts_and_by_start_ts(scene: Scene) -> None:
    ts = scene.shop.changes[4]
    for asked in (ts, ts - 1):
        found = await scene.find(ts=asked)
        (transaction,) = found["transactions"]
        assert transaction["commit_ts"] == str(ts)
        (row,) = transaction["rows"]
        assert (row["kind"], row["database"], row["table"]) == ("insert", "shop", "orders")
        assert cells(row, "new")["customer"] == "'customer 5'"
        assert cells(row, "old")["customer"] is None
        assert found["complete"] is True


async def test_by_table_and_row_the_newest_change_comes_first(scene: Scene) -> None:
    found = await scene.find(table="shop.orders", row={"ID": "3"})
    rows = [row for each in found["transactions"] for row in each["rows"]]
    assert [row["kind"] for row in rows] == ["delete", "update", "insert"]
    changed = {each["name"]: each for each in rows[1]["columns"] if each["changed"]}
    assert list(changed) == ["status"]
    assert (changed["status"]["old"], changed["status"]["new"]) == ("'new'", "'paid'")
    assert all(each["key"] for each in rows[1]["columns"] if each["name"] == "id")


async def test_by_a_value_that_looks_like_markup(scene: Scene) -> None:
    found = await scene.find(table="shop.orders", row={"customer": HOSTILE})
    (transaction,) = found["transactions"]
    assert cells(transaction["rows"][0], "new")["id"] == "99"


async def test_by_time_the_first_come_first(scene: Scene) -> None:
    wanted = scene.shop.changes[3:6]
    found = await scene.find(start=wanted[0], stop=MAX_TS, limit=3)
    assert [each["commit_ts"] for each in found["transactions"]] == [str(ts) for ts in wanted]


async def test_without_a_question_the_newest_come(scene: Scene) -> None:
    found = await scene.find(limit=2)
    newest = scene.shop.changes[-1:-3:-1]
    assert [each["commit_ts"] for each in found["transactions"]] == [str(ts) for ts in newest]


async def test_a_ddl_is_shown_with_its_text(scene: Scene) -> None:
    found = await scene.find(ts=scene.shop.ddl_ts[1])
    (transaction,) = found["transactions"]
    assert "CREATE TABLE" in transaction["ddl"]["sql"]


async def test_what_is_not_there_is_not_found(scene: Scene) -> None:
    found = await scene.find(ts=scene.shop.changes[-1] + 5)
    assert (found["transactions"], found["records"], found["complete"]) == ([], [], True)


@pytest.mark.parametrize("asked", ["shop.ordres", "orders", "shp"])
async def test_a_table_that_no_ddl_made_is_told_at_once_with_near_names(
    scene: Scene, asked: str
) -> None:
    with pytest.raises(Unavailable, match=rf"no table {asked} in the schema .*shop\.orders"):
        await scene.find(table=asked)


async def test_a_database_and_an_expression_find_their_tables(scene: Scene) -> None:
    for asked in ("shop", "SHOP.orders", "shop.~ord.*"):
        assert (await scene.find(table=asked, limit=1))["transactions"], asked


async def test_a_prewrite_without_an_outcome_is_shown_as_what_it_is(scene: Scene) -> None:
    prewrite, commit = scene.shop.make(500, "somebody")
    async with PumpClient(*scene.machine.target, cluster_id=CLUSTER_ID) as client:
        await client.write(prewrite)
        found = await scene.find(ts=scene.shop.changes[-1] - 1)
        assert found["transactions"] == []
        kinds = {each["kind"] for each in found["records"]}
        assert kinds - {"fake"} == {"prewrite"}, "a fake may have been written at that moment"
        await client.write(commit)


async def test_a_column_that_is_not_there_is_named_with_those_that_are(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="no column nme; its columns are id, customer"):
        await scene.find(table="shop.orders", row={"nme": "x"})


async def test_an_expression_that_is_none_is_a_mistake_of_who_asks(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="is no regular expression"):
        await scene.find(table="shop.~[")


async def test_when_the_time_is_over_what_was_found_is_the_answer(scene: Scene) -> None:
    found = await scene.find(table="shop.orders", seconds=1e-6)
    assert found["complete"] is False


async def test_one_at_a_time(scene: Scene) -> None:
    at_once = Finder(scene.finder.paths, patience_s=0.0)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(at_once.find(Question(limit=1), up_to=Tso(MAX_TS)))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="another look-up"):
            await at_once.find(Question(limit=1), up_to=Tso(MAX_TS))
    assert first.result().transactions
    assert (await scene.find(limit=1))["transactions"], "and then it is free again"


async def test_one_that_ends_for_nobody_waits_for_it_makes_room(scene: Scene) -> None:
    former = asyncio.create_task(scene.find(limit=1))
    await asyncio.sleep(0)
    former.cancel()
    assert (await scene.find(limit=1))["transactions"]
    assert former.cancelled()


async def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    value = tmp_path / "pump" / "shard-0" / "value"
    value.mkdir(parents=True)
    (value / "000000.vlog").write_bytes(b"nonsense" * 10)
    (value / "000001.vlog").write_bytes(b"")
    with pytest.raises(Unavailable, match=r"000000\.vlog"):
        await Finder([tmp_path]).find(Question(), up_to=Tso(1 << 60))


async def test_a_look_up_that_dies_is_told_apart_from_one_that_cannot_answer() -> None:
    """Nowhere to look is refused before it is begun; begun all the same, it fails as a bug does."""
    with pytest.raises(Died, match=r"exit code 1: ValueError: ") as died:
        await Finder([]).find(Question(), up_to=Tso(1))
    assert "Traceback" in died.value.__notes__[0], "for the log"
    assert "Traceback" not in str(died.value)


async def test_a_child_of_ours_that_is_killed_is_a_fault_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Died, match="signal 9"):
        await answer_of("killed", b"", timeout_s=120, answer_bytes_max=10)


# --- the child ---------------------------------------------------------------------------------


async def test_a_child_that_hangs_talks_too_much_or_fails_is_gone_afterwards() -> None:
    async def ask(program: str, timeout_s: float = 120.0) -> bytes:
        command = (PYTHON, "-c", program)
        return await answered(command, b"hello", timeout_s=timeout_s, answer_bytes_max=1000)

    assert await ask("print(input())") == b"hello\n"
    with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
        await ask("import time; time.sleep(1000)", timeout_s=0.2)
    with pytest.raises(Unavailable, match="larger than 1000 bytes"):
        await ask("while True: print('x' * 1000)")
    with pytest.raises(Unavailable, match="alas"):
        await ask("import sys; sys.exit('alas')")
    limited = "from binlogd.host.child import yield_to_others; yield_to_others(64 << 20)"
    with pytest.raises(Unavailable, match="MemoryError"):
        await ask(f"{limited}; bytearray(1 << 30)")
    with pytest.raises(Unavailable, match="ended with 3"):
        await ask("import sys; sys.exit(3)")


async def test_a_signal_to_all_that_who_asks_belongs_to_does_not_reach_a_child() -> None:
    command = (sys.executable, "-c", "import os; print(os.getpgrp(), os.getsid(0), os.getpid())")
    said = await answered(command, b"", timeout_s=60, answer_bytes_max=100)
    group, session, child = map(int, said.split())
    assert group == session == child


async def test_a_child_goes_with_who_waits_for_it(tmp_path: Path) -> None:
    sign = tmp_path / "pid"
    program = f"import os, time; open({str(sign)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(
            answered((PYTHON, "-c", program), b"", timeout_s=120, answer_bytes_max=10)
        )
        await eventually(lambda: sign.exists() and sign.read_text() != "")
        waiting.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(sign.read_text()), 0)
