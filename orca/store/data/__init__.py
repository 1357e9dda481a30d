"""How a dataset becomes part files, and how these are read: one module per kind of data."""
