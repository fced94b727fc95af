"""A server before the double of a store, that knows what delta-rs asks of the store besides.

    python -m tests.support.store_proxy {azure,gcs} PORT PORT_OF_THE_DOUBLE

delta-rs looks for versions after the one that it has, and stops where it is given all, as Azurite
3.35 and fake-gcs-server do. It writes by Google's XML interface, with the condition that there is
no such object yet, of which fake-gcs-server has no PUT.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from operator import le, lt
from typing import NamedTuple
from xml.etree import ElementTree

from aiohttp import ClientSession, hdrs, web
from yarl import URL

_OF_THE_WAY = {"transfer-encoding", "content-length", "connection", "keep-alive"}
_OWN = (hdrs.CONTENT_TYPE, hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING)
"""Headers that aiohttp would add, which would be no part of what the caller has signed."""
_CONDITION = "x-goog-if-generation-match"


class _Listing(NamedTuple):
    """The parameter by which a listing begins later, where its entries are, and which of them by
    their names are before."""

    parameter: str
    entries: str
    name: str
    is_before: Callable[[str, str], bool]


_LISTINGS = {
    "azure": _Listing("startFrom", "Blobs", "Name", lt),
    "gcs": _Listing("start-after", ".", "Key", le),
}


async def _serve(store: str, port: int, behind: int) -> None:
    where, listing = f"http://127.0.0.1:{behind}", _LISTINGS[store]
    async with ClientSession(auto_decompress=False, skip_auto_headers=_OWN) as session:

        async def answered(request: web.BaseRequest) -> web.Response:
            content = await request.read() or None
            if store == "gcs" and request.method == "PUT":
                return await put_in_google(request, content)
            url = URL(f"{where}{request.raw_path}", encoded=True)
            left_out = ("expect", "host")
            sent = {k: v for k, v in request.headers.items() if k.lower() not in left_out}
            async with session.request(request.method, url, headers=sent, data=content) as answer:
                body = await answer.read()
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OF_THE_WAY}
            if request.method == "HEAD":
                headers["Content-Length"] = answer.headers.get("Content-Length", "0")
            if answer.status == 200 and (start := request.query.get(listing.parameter)):
                body = _begun_at(start, body, listing)
            return web.Response(status=answer.status, headers=headers, body=body or None)

        async def put_in_google(request: web.BaseRequest, content: bytes | None) -> web.Response:
            _, bucket, name = request.path.split("/", 2)
            asked = {"uploadType": "media", "name": name}
            if condition := request.headers.get(_CONDITION):
                asked["ifGenerationMatch"] = condition
            url = URL(f"{where}/upload/storage/v1/b/{bucket}/o").with_query(asked)
            async with session.post(url, data=content or b"") as answer:
                if answer.status != 200:
                    return web.Response(status=answer.status, body=await answer.read())
                made = await answer.json()
            tag = {"ETag": f'"{made["generation"]}"', "x-goog-generation": made["generation"]}
            return web.Response(headers=tag)

        runner = web.ServerRunner(web.Server(answered))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()  # until it is killed


def _begun_at(start: str, content: bytes, listing: _Listing) -> bytes:
    found = ElementTree.fromstring(content)
    entries = found.find(listing.entries)
    assert entries is not None
    for each in list(entries):
        name = each.findtext(listing.name)
        if name is not None and listing.is_before(name, start):
            entries.remove(each)
    listed: bytes = ElementTree.tostring(found, encoding="utf-8", xml_declaration=True)
    return listed


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
