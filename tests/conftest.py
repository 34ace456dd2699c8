"""Shared fixtures: the real servers live in tests/support."""

pytest_plugins = ["tests.support.fixtures", "tests.support.kafka"]
