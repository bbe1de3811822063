"""The journal: everything the engine was told, append-only, framed, checksummed and hash-chained; the truth the database is a view of."""
