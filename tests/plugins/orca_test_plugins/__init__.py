"""A backend and a runtime that Orca finds by their entry points."""
