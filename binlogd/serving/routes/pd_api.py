"""`/pd/api/v1/…`: who and where, for those who take this process for a PD.

Scripts wait for a PD by its version, TiDB looks for stores, operators for members and health. What
schedules regions is not here.

Source: PD server/api/router.go, member.go, health.go, status.go, store.go, version.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from binlogd.placement.stand_in import PdFace

_UP = "Up"


def add_pd(router: web.UrlDispatcher, face: Callable[[], PdFace] | None) -> None:
    """The words under `/pd/api/v1/`; `face` is what the PD says of itself. Without one none of them
    is known."""

    async def told(request: web.Request) -> web.Response:
        word = request.match_info["word"]
        if face is None:
            raise web.HTTPNotFound
        if word == "ping":
            return web.Response()
        documents = _documents(face())
        if word not in documents:
            known = ", ".join(sorted([*documents, "ping"]))
            reason = f"binlogd stands in for PD: {word} is not here; known: {known}\n"
            return web.Response(status=404, text=reason)
        text = msgspec.json.format(msgspec.json.encode(documents[word]), indent=2)
        return web.Response(body=text + b"\n", content_type="application/json", charset="UTF-8")

    router.add_get("/pd/api/v1/{word}", told)


def _documents(face: PdFace) -> Mapping[str, Any]:
    version = f"v{face.version}"
    member = {
        "name": face.name,
        "member_id": face.member_id,
        "peer_urls": [face.url],
        "client_urls": [face.url],
        "binary_version": version,
    }
    store = {"id": 1, "address": face.url.rpartition("/")[2], "version": face.version}
    return {
        "version": {"version": version},
        "status": {"version": version, "start_timestamp": face.began_ms // 1000},
        "health": [
            {
                "name": face.name,
                "member_id": face.member_id,
                "client_urls": [face.url],
                "health": True,
            }
        ],
        "leader": member,
        "members": {
            "header": {"cluster_id": face.cluster_id},
            "members": [member],
            "leader": member,
            "etcd_leader": member,
        },
        "cluster": {"id": face.cluster_id, "max_peer_count": 1},
        "stores": {"count": 1, "stores": [{"store": {**store, "state_name": _UP}, "status": {}}]},
    }
