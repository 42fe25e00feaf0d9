"""Simulates a cluster, by default LeNet on the digits on 8 devices that are not there.

    python jobs/simulate.py
    python jobs/simulate.py zoo:lenet --cluster 1gbit-32 --table --until 'loss<=.1' --time-limit 900
    ray job submit --working-dir . -- python jobs/simulate.py --devices 32

The options are those of ``omnivore simulate``; the last line of standard output is one JSON object.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a job's working directory

from omnivore_ray.cli import main

MAIN_JOB = [
    "zoo:lenet",
    "--devices=8",
    "--samples-per-s=100",
    "--until=accuracy>=0.97",
    "--time-limit=600",
]

if __name__ == "__main__":
    options = sys.argv[1:]
    if not options or options[0].startswith("-"):
        options = [*MAIN_JOB, *options]
    main(["simulate", "--json", *options])
