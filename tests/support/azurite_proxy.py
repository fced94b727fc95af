"""A server before Azurite that knows one parameter more: `startFrom` of List Blobs, by which
delta-rs looks for versions after the one that it has. Azurite 3.35 gives all, and delta-rs stops.

    python -m tests.support.azurite_proxy PORT PORT_OF_AZURITE
"""

from __future__ import annotations

import asyncio
import sys
from xml.etree import ElementTree

from aiohttp import ClientSession, hdrs, web
from yarl import URL

_OF_THE_WAY = {"transfer-encoding", "content-length", "connection", "keep-alive"}
_OWN = (hdrs.CONTENT_TYPE, hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING)
"""Headers that aiohttp would add, which would be no part of what the caller has signed."""


async def _serve(port: int, behind: int) -> None:
    async with ClientSession(auto_decompress=False, skip_auto_headers=_OWN) as session:

        async def passed_on(request: web.BaseRequest) -> web.Response:
            url = URL(f"http://127.0.0.1:{behind}{request.raw_path}", encoded=True)
            content = await request.read() or None
            sent = {k: v for k, v in request.headers.items() if k.lower() != "expect"}
            async with session.request(request.method, url, headers=sent, data=content) as answer:
                body = await answer.read()
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OF_THE_WAY}
            if request.method == "HEAD":
                headers["Content-Length"] = answer.headers.get("Content-Length", "0")
            if start := request.query.get("startFrom"):
                body = _from(start, body)
            return web.Response(status=answer.status, headers=headers, body=body or None)

        runner = web.ServerRunner(web.Server(passed_on))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()  # until it is killed


def _from(start: str, listing: bytes) -> bytes:
    found = ElementTree.fromstring(listing)
    blobs = found.find("Blobs")
    assert blobs is not None
    for each in [each for each in blobs if (each.findtext("Name") or "") < start]:
        blobs.remove(each)
    listed: bytes = ElementTree.tostring(found, encoding="utf-8", xml_declaration=True)
    return listed


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
