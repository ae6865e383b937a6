"""The doors of the system: the PostgreSQL wire protocol (`pgwire`), HTTP (`http`), and the COPY formats
(`copy`).

Called by the command line, which opens the ports. Everything behind the doors is reached through `engine.api`
alone. Promises: the event loop never blocks (encoding and decoding run in worker threads), every buffer has a
limit (`limits`), and a bad client hurts nobody but itself.
"""
