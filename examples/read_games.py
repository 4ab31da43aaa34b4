"""Read a run's games as arrays: their lengths, results, and how often the most visited move was played.

python examples/read_games.py runs/quickstart
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import keima


def main(argv: list[str] | None = None) -> int:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder")
    arguments = parser.parse_args(argv)
    lengths, first_player, chosen = [], [], []
    try:
        for game in keima.read_games(arguments.run):
            lengths.append(len(game.actions))  # plies
            first_player.append(game.returns[0])
            policies = game.policies()  # [L, A]; zeros where there was no full search
            searched = policies.any(1)
            chosen += (policies[searched].argmax(1) == game.actions[searched]).tolist()
    except (ValueError, OSError) as error:
        print(f"read_games.py: {error}", file=sys.stderr)
        return 2
    if not lengths:
        print(f"{arguments.run} has no games yet")
        return 0
    print(
        f"{len(lengths):,} games of {np.mean(lengths):.1f} plies; mean return of the first player "
        f"{np.mean(first_player):+.3f}"
    )
    print(f"the move with the most visits was played in {np.mean(chosen):.1%} of {len(chosen):,} full searches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
