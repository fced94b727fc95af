"""Asking a running binlogd over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from binlogd import config
from binlogd.assembly import Setup
from binlogd.errors import NotRunning

ANSWER_S = 10.0


def get_json(setup: Setup, route: str) -> dict[str, Any]:
    """The document at `route` of the process that listens at `addr`. Raises NotRunning."""
    host, port = config.listen_address(setup.config.addr)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    url = f"http://{host}:{port}{route}"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            document: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, OSError, json.JSONDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise NotRunning(url, str(reason)) from error
    return document
