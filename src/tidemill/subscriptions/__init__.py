"""Durable subscriptions: their positions, and the history that is kept for their readers.

The engine reads changes for a reader (`engine.subscribe.durable`); this layer knows how far each reader has
acknowledged, and promises that everything after it can be read again, exactly, until a limit is exceeded.
"""
