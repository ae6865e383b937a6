"""Authentication: passwords and their proofs, without I/O and without a catalog.

Called by the engine (CREATE ROLE ... PASSWORD) and by the server layer (logins). `scram` creates the stored
form of a password and checks proofs, `saslprep` defines equal spellings of a password, and `attempts` slows
down guessing. Promise: no password is stored, shown in an error, or part of a `repr`.
"""
