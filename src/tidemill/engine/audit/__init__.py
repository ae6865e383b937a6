"""The audit log: logins and changes of the catalog.

Sessions and the server layer call `log.AuditLog`. Promises that an event is on disk before the statement
returns, that the files are bounded, and that they contain no secret.
"""
