"""The server layer: the PostgreSQL wire protocol (`pgwire`), HTTP (`http`), and the COPY formats (`copy`).

Called by the command line, which opens the ports. Uses the engine only through `engine.api`. Promises: the
event loop never blocks (encoding and decoding run in worker threads), every buffer has a limit (`limits`),
and a faulty client affects only its own connection.
"""
