"""RNG, Sample and JTensor."""
