"""The search for a strategy: cold start, rounds of re-optimisation, and their Tune adapter."""
