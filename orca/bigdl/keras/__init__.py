"""Layers and models with the names of Keras 1."""
