"""The packages that each runtime needs, declared for `orca doctor` without importing the runtime."""
