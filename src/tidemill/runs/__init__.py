"""Sorted runs of rows in files, mapped into memory: what caches of collections by key are made of."""
