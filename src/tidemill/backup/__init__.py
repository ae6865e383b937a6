"""Backups of a data directory, while a server uses it or not: `take`, `restore`.

Called by `tidemill backup` and `tidemill restore`. They only read the directory that they back up, and need
nothing of its server. Promises: what is restored is the directory as of one moment (`cut`), with everything
that was acknowledged before the backup began; a backup is there as a whole or not at all, whenever its writer
is killed, and an earlier one stays good; what is damaged is refused, and the error names it.
"""
