"""Layers, criteria and initialization methods."""
