"""Searches on synthetic surfaces whose truth is known (issue 2, items 3 and 4).

    python benchmarks/surfaces.py --draws 24 --seed 1      # the tables: a few minutes on one core
    python benchmarks/surfaces.py --quick                  # the same with few draws, 20 seconds
    python benchmarks/surfaces.py --ablations              # ours with one step switched off

Every number is simulated. A ratio is time to target, search included, over the time of the best
fixed strategy, which is found by brute force. Draws with one seed give the same numbers again.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from omnivore_ray.search.algorithm import OmnivoreAlgorithm  # noqa: E402
from omnivore_ray.search.contract import Algorithm  # noqa: E402
from synthetic.ablations import ABLATIONS  # noqa: E402
from synthetic.draws import all_diverge, surfaces  # noqa: E402
from synthetic.play import Game, play  # noqa: E402
from synthetic.rivals import Rival  # noqa: E402
from synthetic.tables import (  # noqa: E402
    RIVAL_PROBES_AT_MOST,
    Case,
    case,
    fixed_ratios,
    game,
    mean_probe_seconds,
    searches,
    summary,
    work_until_good,
)

LENGTHS, QUICK_LENGTHS, WORK_LENGTHS = (500, 2000, 8000, 30_000), (2000, 30_000), (2000, 8000)
HEADER = f"{'':34s} {'median':>8s} {'p75':>8s} {'worst':>9s} {'never':>6s}"


def main() -> None:
    """Prints the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="6 draws, two lengths")
    parser.add_argument("--ablations", action="store_true", help="ours with a step switched off")
    parser.add_argument("--decisions", action="store_true", help="what ours decided on draw 0")
    options = parser.parse_args()
    draws, lengths = (6, QUICK_LENGTHS) if options.quick else (options.draws, LENGTHS)
    cases = {
        length: [case(surface) for surface in surfaces(draws, options.seed, length)]
        for length in lengths
    }
    print(f"simulated; {draws} draws, seed {options.seed}")
    if options.decisions:
        print_decisions(cases[lengths[-1]][0], options.seed)
    elif options.ablations:
        print_ablations(cases, options.seed)
    else:
        print_times(cases, options.seed)
        print_work(
            {length: cases[length] for length in WORK_LENGTHS if length in cases}, options.seed
        )
        print_all_diverge(options.seed)


def print_times(cases: dict[int, list[Case]], seed: int) -> None:
    """Item 3: time to target over the best fixed strategy's."""
    print("\nTime to target, search included, over the best fixed strategy's")
    for length, group in cases.items():
        print(f"\nL = {length}\n{HEADER}")
        for name, make in searches().items():
            games = [game(make, of, seed + 1000 * i) for i, of in enumerate(group)]
            ratios = [
                played.seconds / of.best_s for (played, _), of in zip(games, group, strict=True)
            ]
            print(f"{name:34s} {summary(ratios)}", flush=True)
            if name == "ours":
                print_by_class(group, ratios)
                print_shares(games, group)
        print(f"{'sync, momentum .9, its best rate':34s} {summary(fixed_ratios(group, 1))}")
        print(f"{'async, momentum .9, its best rate':34s} {summary(fixed_ratios(group, None))}")


def print_by_class(group: list[Case], ratios: list[float]) -> None:
    """Ours, by class of surface."""
    for kind in dict.fromkeys(of.surface.name for of in group):
        inside = [r for r, of in zip(ratios, group, strict=True) if of.surface.name == kind]
        print(f"{'   ' + kind:34s} {summary(inside)}")


def print_shares(games: list[tuple[Game, Algorithm]], group: list[Case]) -> None:
    """Where our probes' time went, and whether any run ended on a choice that diverges."""
    cold, later = [], []
    for played, algorithm in games:
        probes = [row for row in algorithm.decisions() if row["kind"] == "probe"]
        first = sum(row["seconds"] for row in probes if row["round"] == 0)
        cold.append(first / played.seconds)
        after = sum(row["seconds"] for row in probes if row["round"] > 0)
        later.append(after / max(played.seconds - first, 1e-9))
    ends = [
        of.surface.step(algorithm.best) > of.surface.u_div
        for (_, algorithm), of in zip(games, group, strict=True)
        if algorithm.best is not None
    ]
    print(
        f"   cold start: {np.median(cold):.1%} of the run; probes after it: {max(later):.1%} of "
        f"the rest at most; ends on a diverging choice: {sum(ends)} of {len(ends)}"
    )


def print_work(cases: dict[int, list[Case]], seed: int) -> None:
    """Item 4: probe seconds until the recommendation is within 10 % of the best and stays there."""
    print(
        "\nProbe seconds until the recommended strategy is within 10 % of the best fixed one and "
        "stays there,\nover ours' cold start's mean probe (inf: not within the run, or within "
        f"{RIVAL_PROBES_AT_MOST} probes)"
    )
    for length, group in cases.items():
        work: dict[str, list[float]] = {"ours": [], "TPE": [], "random": []}
        for i, of in enumerate(group):
            make = searches()["ours"]
            played, algorithm = game(make, of, seed + 1000 * i)
            unit = mean_probe_seconds(algorithm)
            work["ours"].append(work_until_good(played, of) / unit)
            for name in ("TPE", "random"):
                rival = Rival(name, of.surface.groups, unit, RIVAL_PROBES_AT_MOST, seed + 1000 * i)
                spent = play(rival, of.surface, seed + 1000 * i, unit * RIVAL_PROBES_AT_MOST)
                work[name].append(work_until_good(spent, of) / unit)
        print(f"\nL = {length}\n{HEADER}")
        for name, values in work.items():
            print(f"{name:34s} {summary(values)}", flush=True)
        for name in ("TPE", "random"):
            pairs = zip(work["ours"], work[name], strict=True)
            ratios = [a / b for a, b in pairs if not (math.isinf(a) and math.isinf(b))]
            print(f"{'ours over ' + name:34s} {summary(ratios)}")


def print_all_diverge(seed: int) -> None:
    """A surface on which nothing trains must end with a sentence."""
    rng = np.random.default_rng(seed)
    algorithm = OmnivoreAlgorithm(32)
    play(algorithm, all_diverge(rng, 2000), seed)
    print(f"\nAll diverge: {len(algorithm.decisions())} requests, then: {algorithm.failure}")


def print_ablations(cases: dict[int, list[Case]], seed: int) -> None:
    """Ours at the two longest lengths, with one step at a time off or done differently."""
    make = searches()["ours"]
    for length, group in list(cases.items())[-2:]:
        print(f"\nL = {length}\n{HEADER}")
        for name, ablation in ABLATIONS.items():
            with ablation():
                games = [game(make, of, seed + 1000 * i)[0] for i, of in enumerate(group)]
            ratios = [played.seconds / of.best_s for played, of in zip(games, group, strict=True)]
            print(f"{name:34s} {summary(ratios)}", flush=True)


def print_decisions(of: Case, seed: int) -> None:
    """The whole table of decisions of one run."""
    played, algorithm = game(searches()["ours"], of, seed)
    print(f"{of.surface}\nbest fixed: {of.best}, {of.best_s:.0f} s; ours: {played.seconds:.0f} s")
    for row in algorithm.decisions():
        print(
            f"{row['round']:2d} {row['kind']:5s} g={row['groups']:<3d} "
            f"lr={row['learning_rate']:<9.3g} mu={row['momentum']:<6.2f} n={row['updates']:<6d} "
            f"{row['seconds']:8.1f} s  {row['verdict']:9s} {row['reason']}"
        )


if __name__ == "__main__":
    main()
