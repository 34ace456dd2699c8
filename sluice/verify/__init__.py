"""Proof from outside: what the logs hold against what the tables hold."""
