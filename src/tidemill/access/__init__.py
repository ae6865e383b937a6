"""Who somebody is: passwords and how they are proved, without I/O and without a catalog.

`scram` makes what is stored of a password and checks proofs of it, `saslprep` says which spellings are the
same password, `attempts` slows down those who guess. Called by the engine (CREATE ROLE ... PASSWORD) and by
the server's doors (logins). Promise: no password is kept, shown in an error, or part of a `repr`.
"""
