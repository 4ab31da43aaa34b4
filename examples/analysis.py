"""Analyse a position: a network's best moves with visits, values and principal lines.

python analysis.py E5 C3        after these moves of 9x9 Go
"""

import sys

import keima


def main(*moves: str, network: str = "go9", simulations: int = 400) -> None:
    """Analyse and print. ``network`` is a shipped one, a model's file, a run's folder or a run's name."""
    lines = keima.load_network(network).analyse(moves, simulations=simulations)
    print(f"{'move':>6} {'visits':>7} {'value':>7} {'prior':>6}  principal line")
    for line in lines:
        shown = " ".join(line.principal_line[:8])
        print(f"{line.move:>6} {line.visits:>7,} {line.value:>+7.3f} {line.prior:>6.1%}  {shown}")


if __name__ == "__main__":
    main(*sys.argv[1:])
