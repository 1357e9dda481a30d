"""Engines: where shards are stored, one file per engine, with the same few verbs."""
