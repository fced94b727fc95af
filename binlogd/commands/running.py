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


def get_json(setup: Setup, route: str) -> Any:
    """The document at `route` of the process that listens at `addr`. Raises NotRunning."""
    return _asked(setup, route, "GET")


def put(setup: Setup, route: str) -> dict[str, Any]:
    """The answer to a request to act. Raises NotRunning."""
    answer: dict[str, Any] = _asked(setup, route, "PUT")
    return answer


def _asked(setup: Setup, route: str, method: str) -> Any:
    host, port = config.listen_address(setup.config.addr)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    url = f"http://{host}:{port}{route}"
    try:
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, json.JSONDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise NotRunning(url, str(reason)) from error
