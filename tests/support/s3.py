"""Fixtures: s3."""
