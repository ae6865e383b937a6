"""A folder of files as a source: messages of a CDCv2 stream, one a line in JSON, or records of Avro files.

Files appear whole (written under a name that begins with a dot, and renamed) and never change; what their
names are, and in which order they come, says nothing.
"""
