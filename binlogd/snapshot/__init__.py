"""Tables as of one commit_ts, out of the log, as files.

In the service or the command: `export` (or `export_queue`, for those who ask a running binlogd)
says what is needed, with `estimate` before it, which lists what was made as well; `publication`
makes it seen, `check` looks whether it is whole. In the process that is its own: `child`, told by
`spec`, `job` and `workers`. From below:

- `formats`: values and tables as Parquet, ORC, CSV and JSON know them;
- `log`: the segments read in columns by Spark tasks, and the last of each row;
- `publishing`: what is on disk after a kill, the one rename, manifests, stores and lakes;
- `bases`: snapshots and dumps to build on;
- `process`: the Spark session's process, and where its files lie;
- `tables`: which transactions and tables there are at the moment;
- `writing`: winners decoded, changed to the columns of now, and written.
"""
