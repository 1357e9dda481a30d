"""The packages that each framework needs, declared for `orca doctor` without importing the framework."""
