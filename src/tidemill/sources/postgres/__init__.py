"""PostgreSQL source: logical replication without anything in between.

`describe` asks a server what a publication has, and `definition` is what is kept of it. `connect` opens
sessions, all with the same settings, so that every value has one text; `values` turns columns of texts into
storage form. `snapshot` reads the tables as they were when the slot was made.
"""
