"""From merged binlogs to a downstream, and the checkpoint that says how far.

`drainer` keeps a `session` going: binlogs come in, `translate` makes transactions (`txn`) of them
by the schema of their moment (`schema_log`), a `sink` takes them, a `checkpoint` is kept;
`restore` does the same from the relay log alone. From below: `messages` and `filtering`, how a
`ddl` reads, `rows` as SQL, and the sinks: `mysql`, `sqlite`, `files`, `kafka`.
"""
