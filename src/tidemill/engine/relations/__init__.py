"""Names to relations: the catalog's, and the system relations that describe the running system.

`resolver` resolves names along the search path. `system` lists the system relations, one module per subject;
`pg/` has PostgreSQL's catalogs. Promises that a system relation is made from one catalog state, and never
shows a secret.
"""
