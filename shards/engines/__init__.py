"""Where shards lie: one file per engine, each with the same few verbs."""
