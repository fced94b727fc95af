"""The pinned segments as DataFrames: heads first, then the last of each row, raw."""
