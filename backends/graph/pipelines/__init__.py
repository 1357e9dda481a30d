"""Graphs that read their own data: cut where records enter, and run on some records at a time."""
