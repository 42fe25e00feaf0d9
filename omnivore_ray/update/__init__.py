"""What an update does to the parameters: leases, merging, stopping. No Ray, no clock, no waiting.

`cluster` runs it behind a Ray actor and real time, `simulate` behind an event queue.
"""
