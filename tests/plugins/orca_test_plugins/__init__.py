"""A backend, a runtime and an adapter that Orca finds by their entry points."""
