"""Kafka: reading ranges, recording intents, the ledger, dead letters."""
