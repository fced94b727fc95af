"""binlogs for Spark: the data source `binlogd`, and the pipeline that runs on it."""
