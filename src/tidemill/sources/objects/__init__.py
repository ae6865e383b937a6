"""Objects as a source: the objects of a bucket, or the files of a folder, as rows.

Each object is a partition, and its offsets count bytes. `listing` finds objects, `source` decides how much of
them is there, and `reader` (in the tasks) turns ranges of bytes into rows. Folders that hold CDCv2 messages
are `sources.files`.
"""
