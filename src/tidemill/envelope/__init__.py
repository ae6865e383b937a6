"""Envelopes: how records become updates.

Called inside Spark tasks by `ingest`. Promise: updates are a function of the records of a time and of the
collection before it, on every machine and on every repetition.
"""
