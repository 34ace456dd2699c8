"""Real faults on the real stack: a proxy, signals, a seeded schedule, and the content check."""
