"""Loopback servers for tests, and the smallest thing that drives an engine."""
