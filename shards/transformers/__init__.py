"""Scalers and an indexer for columns, fitted over all shards in one pass and applied where the rows are stored."""

from orca.shards.transformers.scalers import MinMaxScaler, StandardScaler
from orca.shards.transformers.string_indexer import StringIndexer

__all__ = ["MinMaxScaler", "StandardScaler", "StringIndexer"]
