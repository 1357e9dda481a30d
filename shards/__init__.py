"""XShards: rows in shards, on this machine, on Ray or on Spark."""

from orca.shards.xshards import XShards

__all__ = ["XShards"]
