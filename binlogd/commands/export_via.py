"""`binlogd export --via`: the running binlogd makes the export, and this command looks on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from binlogd.commands.beside import refuse_typed, typed
from binlogd.commands.console import ExportProgress
from binlogd.commands.manner import SUBMITTED
from binlogd.commands.options import load_asking
from binlogd.commands.output import say, say_json, say_table
from binlogd.commands.running import asked
from binlogd.errors import ConfigError, GaveUp, NotRunning, Refused
from binlogd.host import loop
from binlogd.host.words import split_url
from binlogd.settings.quantities import address_of
from binlogd.settings.setup import Setup
from binlogd.snapshot.export_queue import WRONG_EXIT, AskedExport, ExportJob
from binlogd.snapshot.spec import Progress, Stage

POLL_S = 0.2
CANCEL_S = 30.0
"""How long it may take until a cancelled export has tidied up."""
_STAGES: dict[str, Stage] = {stage: stage for stage in get_args(Stage)}
_SUBMITTED_WORDS = (
    *("out", "as_of", "base", "file_format", "archive", "layout", "resume", "force", "keep"),
    *("config_file", "data_dir", "types", "as_json", "log_level"),
)
_SUBMITTED_WHY = (
    "not under spark-submit, where an export reads an archive and writes files; say it to `binlogd"
    " export` on one machine"
)
_OPEN = ("waiting", "running")
_BAD_REQUEST, _NOT_FOUND, _ACCEPTED = 400, 404, 202


def setup_for(via: str, config_file: Path | None, data_dir: str | None) -> Setup:
    """How to reach a node at `host:port`, `http://host:port` or `https://host:port`; certificates
    and the token are those of the configuration. Raises ConfigError."""
    parts = split_url(via if "://" in via else f"//{via}")
    if parts.scheme not in ("", "http", "https") or not parts.netloc or parts.path.strip("/"):
        raise ConfigError(f"--via {via}: say where binlogd listens: http://host:8250")
    address_of("--via", parts.netloc)
    setup = load_asking(config_file, parts.netloc, data_dir)
    is_tls = bool(setup.config.security.ssl_ca)
    if parts.scheme and is_tls != (parts.scheme == "https"):
        raise ConfigError(
            f"--via {via}: the configuration {'has' if is_tls else 'names no'} certificates"
            " ([security] ssl-ca); name the --config that the node is started with"
        )
    return setup


def check_words(context: typer.Context) -> None:
    """Raises ConfigError for an option that has no meaning under spark-submit."""
    if context.obj is SUBMITTED:
        names = {name for name in typed(context) if name not in _SUBMITTED_WORDS}
        refuse_typed(context, names, _SUBMITTED_WHY)


def export_via(setup: Setup, request: AskedExport, *, as_json: bool) -> None:
    """Asks for a snapshot and waits for it. Ctrl-C and SIGTERM cancel it.

    Raises NotRunning, ConfigError, Refused, GaveUp.
    """
    with ExportProgress(Console(stderr=True)) as shown:
        job = loop.run(loop.ended_by_term(_made(setup, request, shown.advance)))
    if job.state == "cancelled":
        raise GaveUp(f"export {job.id} was cancelled by somebody; nothing was published")
    if job.state != "done":
        raise (ConfigError if job.exit_code == WRONG_EXIT else GaveUp)(job.message)
    if as_json:
        say_json(job)
        return
    there = "" if job.is_new else " (it was there already)"
    say(
        f"{job.path} (over there): {job.tables} tables, {job.rows} rows,"
        f" {job.size_bytes / 1e6:.1f} MB as of commit_ts {job.commit_ts}{there}, built on"
        f" {job.built_on or 'no base'}, in {job.seconds:.1f} s"
    )
    for table in job.left_out:
        say(table, "left out")


def show_exports(setup: Setup, *, as_json: bool) -> None:
    """What a node was asked for. Raises NotRunning, Refused."""
    status, body = asked(setup, "GET", "/exports")
    jobs: list[ExportJob] = _decoded(status, body, list[ExportJob])
    if as_json:
        sys.stdout.write(body.decode())
        return
    if not jobs:
        say("nobody has asked for an export since it was started")
        return
    names = ("id", "state", "as of", "format", "tables", "rows", "MB", "took", "")
    say_table(names, map(_row, jobs))


def _row(job: ExportJob) -> tuple[str, ...]:
    part = f" {100 * job.done // job.total} %" if job.total else ""
    doing = f"running: {job.stage}{part}" if job.state == "running" else job.state
    made = job.state == "done"
    shown = (
        str(job.id),
        doing,
        str(job.commit_ts or job.request.as_of),
        job.request.format,
        str(job.tables) if made else "",
        f"{job.rows:,}" if made else "",
        f"{job.size_bytes / 1e6:.1f}" if made else "",
        f"{job.seconds:.1f} s" if job.seconds else "",
        job.path or job.message,
    )
    return tuple(map(escape, shown))


async def _made(setup: Setup, request: AskedExport, show: Callable[[Progress], None]) -> ExportJob:
    """The job once it is over. Cancelled, it cancels the export."""
    job = _asked(setup, "POST", "/exports", msgspec.json.encode(request))
    try:
        while job.state in _OPEN:
            for step in _steps(job):
                show(step)
            job = await _looked_again(setup, job.id)
    except asyncio.CancelledError:
        await _cancel(setup, job.id)
        raise
    return job


def _steps(job: ExportJob) -> Iterator[Progress]:
    if job.state == "waiting":
        yield Progress("waiting", 0, 0)
        return
    yield Progress(_STAGES.get(job.stage, "starting"), job.done, job.total)
    for table, rows in job.written.items():
        yield Progress("rows", rows, 0, table)


async def _looked_again(setup: Setup, number: int) -> ExportJob:
    await asyncio.sleep(POLL_S)
    return _asked(setup, "GET", f"/exports/{number}")


async def _cancel(setup: Setup, number: int) -> None:
    """Until nothing of it is left over there."""
    _asked(setup, "DELETE", f"/exports/{number}")
    try:
        async with asyncio.timeout(CANCEL_S):
            while (await _looked_again(setup, number)).state in _OPEN:
                pass
    except TimeoutError:
        raise GaveUp(
            f"export {number} was asked to end, and has not within {CANCEL_S:g} s"
        ) from None


def _asked(setup: Setup, method: str, route: str, body: bytes | None = None) -> ExportJob:
    status, answer = asked(setup, method, route, body=body)
    job: ExportJob = _decoded(status, answer, ExportJob)
    return job


def _decoded(status: int, body: bytes, kind: Any) -> Any:
    try:
        if status in (200, _ACCEPTED):
            return msgspec.json.decode(body, type=kind)
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotRunning("/exports", f"an answer {status} that is none of binlogd's") from error
    if status == _NOT_FOUND:
        raise GaveUp("it forgot the export: it was started anew meanwhile; ask once more")
    raise (ConfigError if status == _BAD_REQUEST else Refused)(message)
