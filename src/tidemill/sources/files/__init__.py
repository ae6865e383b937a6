"""Folder source: CDCv2 messages, one JSON message per line, or records of Avro files.

Files must appear complete (written under a name that begins with a dot, then renamed) and never change. The
names and the order of appearance carry no meaning.
"""
