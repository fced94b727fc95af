"""What receives binlogs: durable first, then acknowledged, then pulled in commit order.

`rpc` takes the calls, `pump` routes them over its shards (`route`, `admission`, `state`), a `shard`
writes them to its `log` and files them in its index; `resolver` asks for outcomes that are missing,
`caretaker` removes what nobody needs. `checking` is for a directory at rest.
"""
