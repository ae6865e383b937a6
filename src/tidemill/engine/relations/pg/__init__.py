"""PostgreSQL's catalogs over ours: pg_catalog and information_schema, and the functions that ask them.

Called by `relations.system` (the rows) and by `catalog_query` (the functions and names). Everything is made
from one catalog state when a statement asks (`world`); OIDs follow from ids, so they stay the same as long as
the thing exists. What Tidemill has nothing of (triggers, policies, partitions) is there and empty, so that
clients that look find none.
"""
