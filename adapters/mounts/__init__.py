"""Logs on mounts that may hang: one reader process per mount (`reader`), and in the main process the `source.Mounts` that joins them."""
