"""Tidemill: streams of changes in, consistent tables out, one tick at a time."""
