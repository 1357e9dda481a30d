"""BigDL-style layers and criteria, computed by torch modules."""
