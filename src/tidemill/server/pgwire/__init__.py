"""The PostgreSQL wire protocol, versions 3.0 to 3.2.

`protocol` parses the client's bytes into messages and decides which of them are valid now. `messages`
are the client's messages, `replies` the server's; neither depends on sockets or the engine. `listener`
and `connection` are the asyncio side. `message_loop` runs messages against an `engine.api.Session`,
`portals` keeps the prepared statements and portals of a session, `rows` encodes results.
"""
