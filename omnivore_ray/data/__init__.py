"""Data: where rows come from (`sources`), in which order (`sampler`), and small real sets."""
