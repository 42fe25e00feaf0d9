"""Synthetic training surfaces with known truth, and the searchers that are compared on them."""
