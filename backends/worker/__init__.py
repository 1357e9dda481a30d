"""What every rank does, whatever the framework: train, score, predict."""
