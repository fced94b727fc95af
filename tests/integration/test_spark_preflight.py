"""What an export lacks is named before anything starts, and the class archive is for one Java."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.errors import ConfigError
from binlogd.settings import sources
from binlogd.settings.setup import Setup
from binlogd.snapshot.process import gateway, preflight
from binlogd.snapshot.process.launcher import running
from binlogd.snapshot.process.preflight import note_launch, warm_up
from binlogd.snapshot.spec import SessionSpec
from binlogd.spark.request import given_jobs, request
from binlogd.spark.submit import Arguments, with_history
from tests.support.spark import forget_sessions
from tests.support.submitted import arguments_of


def java_that_says(home: Path, text: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    java.chmod(0o755)
    return home


NEW = 'openjdk version "21.0.4" 2024-07-16 LTS\nOpenJDK Runtime Environment (build 21.0.4+7-LTS)'


async def test_no_java_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java found .*install a JRE 17 or 21"):
        await preflight.machine()


async def test_a_user_without_a_name_is_told_before_hadoop_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1_234_567)
    with pytest.raises(ConfigError, match=r"user 1234567 has no name here.* in /etc/passwd"):
        await preflight.machine()


@pytest.mark.parametrize("said", ['java version "1.8.0_402"', 'openjdk version "11.0.2"', "Segv"])
async def test_a_java_that_is_too_old_is_told_by_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "old", said)))
    with pytest.raises(ConfigError, match="too old for Spark") as refused:
        await preflight.machine()
    assert said in str(refused.value)


async def test_another_build_of_java_has_another_class_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archives = set()
    for number, build in enumerate((NEW, NEW.replace("+7", "+8"), NEW)):
        home = java_that_says(tmp_path / f"java{number}", build)
        monkeypatch.setenv("JAVA_HOME", str(home))
        archives.add((await preflight.machine()).class_archive())
    assert len(archives) == 2
    assert {each.parent for each in archives} == {tmp_path / "cache" / "binlogd"}


async def test_settings_that_only_sparks_scripts_read_leave_the_start_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sessions(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", NEW)))
    found = await preflight.machine()
    found.launch_file().parent.mkdir()
    found.launch_file().write_text('["-cp", "jars/*"]')
    assert found.launch() == (found.java, "-cp", "jars/*")
    for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            assert found.launch() == ()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert found.launch() != ()
    await note_launch(found)  # this Java answers nothing that could be understood
    assert found.launch() == ()


@pytest.mark.parametrize("damaged", [b'["-cp", "ja', b'["\xff"]', b"{}", b""])
async def test_what_is_damaged_of_the_launchers_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    forget_sessions(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", NEW)))
    found = await preflight.machine()
    found.launch_file().parent.mkdir()
    found.launch_file().write_bytes(damaged)
    assert found.launch() == (), "Spark's scripts start it"
    await preflight.know_launch(found)
    assert found.noted_options() == (), "what this Java says, which nobody could understand"


async def test_a_cache_that_cannot_be_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_sessions(monkeypatch)
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(java_that_says(tmp_path / "java", NEW)))
    found = await preflight.machine()
    await preflight.know_launch(found)
    made = found.session(tmp_path, cores=2, memory_mb=1024)
    assert (made.class_archive, made.launch) == ("", ())


def test_a_heap_that_the_machine_has_no_room_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs \d+ MB of memory"):
        preflight.check_memory(1 << 30)
    with pytest.raises(ConfigError, match="too few for Spark"):
        preflight.check_memory(100)


def test_a_disk_that_cannot_hold_the_rows_on_their_way_is_refused(tmp_path: Path) -> None:
    preflight.check_disk(tmp_path, 1 << 20)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(ConfigError, match="choose another --out"):
        preflight.check_disk(tmp_path, 4 * free)


needs_java = pytest.mark.skipif(
    shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java"
)


@needs_java
async def test_this_machine_can_export() -> None:
    found = await preflight.machine()
    assert found.pyspark_version.startswith("4.")
    assert "version" in found.java_said


@needs_java
@pytest.mark.soak
async def test_the_class_archive_is_made_once_and_a_session_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = await warm_up()
    assert made.is_new
    assert not (await warm_up()).is_new
    session = (await preflight.machine()).session(tmp_path, cores=2, memory_mb=1024)
    assert (session.class_archive, session.launch != ()) == (str(made.path), True)
    async with running(session, tmp_path / "job.log") as job:
        await job.finish(preflight.DUMP_GRACE_S)
    assert "[cds" not in (tmp_path / "job.log").read_text()  # as a JVM says of one it passes over


def test_a_pipeline_reads_the_ddl_history_that_the_configuration_names(tmp_path: Path) -> None:
    file = tmp_path / "binlogd.toml"
    file.write_text('[upstream]\nschema-history = "history.json"\n')
    setup = Setup(sources.read(file, {}, {}).config)
    plain = Arguments(source="data", into="delta:lake", checkpoint="point")
    assert with_history(plain, setup).options == (f"schemaHistory={tmp_path / 'history.json'}",)
    named = replace(plain, options=("schemaHistory=other.json",))
    assert with_history(named, setup) == named
    assert with_history(plain, Setup(sources.read(None, {}, {}).config)) == plain
    words = ("--source", "data", "--into", "delta:lake", "--checkpoint", "point")
    submitted = arguments_of(*words, "--config", str(file))
    assert submitted.options == (f"schemaHistory={tmp_path / 'history.json'}",)


def test_a_history_that_is_given_is_the_history_also_where_it_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text("[]")
    plain = {"path": str(tmp_path), "form": "changes"}
    assert given_jobs(request(plain)) is None
    assert given_jobs(request({**plain, "schemaHistory": str(file)})) == []


def test_a_worker_imports_the_pyspark_that_is_installed(tmp_path: Path) -> None:
    """With SPARK_HOME it would compile one out of a zip, each time."""
    said = tmp_path / "environment"
    spec = SessionSpec(scratch=str(tmp_path), launch=("sh", "-c", f"env > {said}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", "/opt/spark")
        jvm = gateway.begun(spec)
    assert jvm is not None
    jvm.communicate()
    assert "SPARK_HOME" not in said.read_text()
    assert "PYTHONHASHSEED=0" in said.read_text()
