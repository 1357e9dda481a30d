"""One folder per framework: what it has to say on one rank, and how its replicas stay in sync."""
