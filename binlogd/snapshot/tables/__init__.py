"""What there is at the moment of a snapshot: transactions that count, and tables by their rows."""
