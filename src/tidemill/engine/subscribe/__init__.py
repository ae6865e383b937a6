"""SUBSCRIBE: from the statement to a stream of rows that continues.

Called by `session.planner`; the changes come from `tidemill.subscribe`. Promises that the first time is held
in every input before anything else is evaluated, so that no change between the snapshot and the stream is
lost.
"""
