"""The downstream that is one SQLite file."""
