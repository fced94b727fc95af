"""The log of a Pump as it lies on disk: its bytes, its directory, and the one way to read it."""
