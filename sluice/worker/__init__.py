"""The worker: the task that loads ranges, from Kafka into every table of their topic."""
