"""Envelopes: how records become updates.

Called inside Spark tasks by `ingest`. Promises: updates are a function of the records of a time and of the
collection before it, whatever machine computes them and however often.
"""
