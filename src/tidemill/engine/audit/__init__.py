"""The audit log: logins and changes of the catalog.

`log.AuditLog` is called by sessions and by the server layer. Promises that an event is on disk before the
statement is answered, within bounded files, and that no secret is in it.
"""
