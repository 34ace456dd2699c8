"""The seeded simulator: the real loader over a world in memory that breaks on purpose."""
