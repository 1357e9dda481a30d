"""Readers and writers: files of any fsspec path as XShards, read in parallel where the engine runs."""
