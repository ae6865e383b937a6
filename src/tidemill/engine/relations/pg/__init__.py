"""PostgreSQL's catalogs over Tidemill's: pg_catalog and information_schema, and the functions that read them.

Called by `relations.system` (the rows) and by `catalog_query` (the functions and names). Everything is made
from the catalog state of the statement that reads it (`world`). OIDs follow from ids, so they stay the same
as long as the object exists. Relations about features that Tidemill does not have (triggers, policies,
partitions) exist and are empty, so that clients that query them find none.
"""
