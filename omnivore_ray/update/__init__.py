"""What a group update does to the parameters: leases, merging, stopping. No Ray, no clock, no wait.

`cluster` runs it behind a Ray actor and real time, `simulate` behind an event queue.
"""
