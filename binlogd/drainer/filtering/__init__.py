"""Which tables, statements and transactions are replicated, and under which names."""
