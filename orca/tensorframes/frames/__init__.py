"""Frames: the kinds of data that programs run on, one file each."""
