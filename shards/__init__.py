"""XShards: what rows exist and where they lie, on this machine, on Ray or on Spark."""

from orca.shards.xshards import XShards

__all__ = ["XShards"]
