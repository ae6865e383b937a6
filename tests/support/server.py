"""Fixtures: server."""
