"""The PostgreSQL wire protocol, versions 3.0 to 3.2.

`protocol` turns a client's bytes into messages and decides which of them may be acted on; `messages` are what
clients say, `replies` what we say; neither knows sockets or the engine. `listener` and `connection` are the
asyncio side, `message_loop` runs messages against an `engine.api.Session`, `portals` keeps what a session
prepared, `rows` encodes results.
"""
