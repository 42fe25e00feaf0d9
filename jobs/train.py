"""Trains a workload, by default LeNet on the digits until 97 % of the validation set is right.

    python jobs/train.py
    ray job submit --working-dir . -- python jobs/train.py --devices 4
    python jobs/train.py my_module:workload --until 'loss<=0.1' --time-limit 600

The options are those of ``omnivore train``; the last line of standard output is one JSON object.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a job's working directory

from omnivore_ray.cli import main

MAIN_JOB = [
    "zoo:lenet",
    "--until=accuracy>=0.97",
    "--time-limit=110",
]

if __name__ == "__main__":
    options = sys.argv[1:]
    if not options or options[0].startswith("-"):
        options = [*MAIN_JOB, *options]
    main(["train", "--json", *options])
