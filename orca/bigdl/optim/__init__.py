"""Training of layers: optim methods, triggers, validation methods, summaries and the Optimizer."""
