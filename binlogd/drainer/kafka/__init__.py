"""Transactions as messages of Kafka: three notations, one sink."""
