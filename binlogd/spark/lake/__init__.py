"""Tables of a lakehouse that the pipeline moves on, batch by batch; knows nothing of Spark.

    root/tables.json            commit_ts, and each table with its directory and version
    root/_pipeline.json         which pipeline keeps it
    root/table-<id>/            a table: the columns upstream, and `_binlogd_key`
    root/_schema/<commit_ts>    the upstream's schema at that moment, for the next batch
    root/_schema/<...>.columns  of a changelog: which columns its tables have come to
    root/catalog.db             names for readers (Iceberg in a directory only)
    root/_catalog.json          the names that a catalog of the user's has, of files in `_names/`

`tables.json` is the one thing that decides. A batch begins with the versions that it names, makes
new ones that nobody is told of, and ends by naming those, in one write. Who is killed in between
has done nothing; who does a batch again begins with the same versions, also when the batch is cut
in another way by then. So what a batch does to a table need not be asked for, only done.

Directories are named by table id: RENAME moves nothing, and two tables may change their names.
"""
