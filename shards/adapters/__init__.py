"""Data objects of the frameworks as arrays; one file per framework, which only it may import."""
