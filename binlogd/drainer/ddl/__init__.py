"""DDL: which of it is replicated, and how its text reads downstream."""
