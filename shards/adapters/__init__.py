"""Kinds of data that users pass; one file each, which alone may import the library behind it."""
