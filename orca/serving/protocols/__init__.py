"""The protocols that the server speaks, one file each: every file lists its routes."""
