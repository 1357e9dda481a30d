"""How a gang of ranks starts, reports, fails and stops; one file per runtime."""
