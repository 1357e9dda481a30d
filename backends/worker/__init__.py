"""The work of a rank, for any framework: train, score, predict."""
