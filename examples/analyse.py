"""Analyse a position: the network's best moves with visits, values and principal lines.

python examples/analyse.py                                             9x9 Go, with the shipped network
python examples/analyse.py E5 C3 --simulations 1000
python examples/analyse.py --network runs/quickstart 4 4 3             a run's newest network
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import keima
from keima.config.flags import whole


def main(argv: list[str] | None = None) -> int:
    """Analyse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moves", nargs="*", metavar="MOVE", help="of the game so far")
    parser.add_argument(
        "--network", type=Path, default=ROOT / "models" / "go9.safetensors", help="a model's file or a run's folder"
    )
    parser.add_argument("--simulations", type=whole(), default=400, help="of the search (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        network = keima.load_network(arguments.network)
        lines = network.analyse(arguments.moves, simulations=arguments.simulations)
    except (ValueError, OSError) as error:
        print(f"analyse.py: {error}", file=sys.stderr)
        return 2
    print(f"{'move':>6} {'visits':>7} {'value':>7} {'prior':>6}  principal line")
    for line in lines:
        print(
            f"{line.move:>6} {line.visits:>7,} {line.value:>+7.3f} {line.prior:>6.1%}  "
            f"{' '.join(line.principal_line[:8])}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
