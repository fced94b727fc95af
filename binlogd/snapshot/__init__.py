"""Tables as of one commit_ts, out of the log, as files: what stands where.

Asked for: `export` (and `desk`, in a service) → what is needed: `preflight`, `estimate`, `bases` →
the child process: `launcher`, kept `warm`, sped up by `warmup`, told by `spec`.

In the child: `job` → `session` → the log as DataFrames: `scan` over `reader`, `rowkey` →
what is decided: `transactions`, and which tables there are: `catalog` → the last of each row:
`state`, or all of them: `changes` → decoded and written: `write`, `writer`, `change_writer`,
`rewrite`, `columns`, `formats`, `texts`, `files`.

Built on what there is: `built_on`, `changed`, `carried`, `loose`, `adapt`, `read_back`,
`read_files`; a Dumpling dump: `dump`, `dump_rows`, `dump_values`.

Made visible: `marks` and `resume` (a kill in between), `publish`, `publication`, `store`,
`dumpling`, `create_table`, `lake/`. Looked at: `exports`, `check`.
"""
