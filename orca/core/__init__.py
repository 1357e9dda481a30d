"""The lowest layer: machine facts, argument checks, pickling, temporary folders. Imports nothing above it."""
