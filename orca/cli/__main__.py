"""Lets ``python -m orca.cli`` run the command line."""

from __future__ import annotations

from orca.cli import main

if __name__ == "__main__":
    main()
