"""Tables of Delta Lake and Iceberg over the Parquet files of published snapshots."""
