"""Train the same run on a Ray cluster and over SSH, and compare games, models and strength.

    python benchmarks/cluster/ray_and_ssh.py [--seeds 2] [--iterations 8]

Three workers play tic-tac-toe on three nodes of a Ray cluster, and then on three folders behind a real sshd; all are on
this machine. In synchronous mode a seed decides all games, so that both runs should have the same games and models, to
the byte. Strength is measured against the exact solver. It needs sshd and Ray (requirements-ray.txt).
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from keima.config.flags import whole
from keima.data.ledger import read_ledger
from keima.paths import CACHE
from tests.cluster.ray.nodes import Nodes, ray_nodes
from tests.cluster.ray.ray_run import RayRun, ray_run
from tests.cluster.sshd import Sshd, running_sshd

WORKERS = 3
SECTIONS: dict[str, dict[str, Any]] = {
    "network": {"blocks": 2, "channels": 16, "global_pooling": False},
    "search": {"num_simulations": 32, "full_search_probability": 1.0, "opening_random_moves": 1.0},
    "training": {
        "asynchronous": False,
        "batch_size": 128,
        "learning_rate": 5e-3,
        "warmup_steps": 20,
        "ema_decay": 0.98,
        "samples_per_position": 6.0,
        "games_per_iteration": 200,
        "window": {"min_positions": 1000, "max_positions": 20_000, "growth_exponent": 0.65, "seed_games": []},
    },
    "evaluation": {"every": 1, "num_simulations": 32, "perfect_play": True, "positions": 500, "rating_games": 0},
}
SECONDS = 1200.0


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    games: int
    errors: tuple[float, ...]  # share of moves that throw away game value, by iteration
    models: tuple[str, ...]  # SHA-256


def trained(
    folder: Path, nodes: Nodes, distributed: Mapping[str, Any], *, home: Path, seed: int, iterations: int
) -> Result:
    """Train a run to its end, as a user with this home."""
    changes = {**SECTIONS, "run": {"seed": seed, "iterations": iterations}, "distributed": distributed}
    folder.mkdir(parents=True)
    with ray_run(folder, nodes, changes=changes, environment={"HOME": str(home)}) as run:
        run.start()
        assert run.process
        code = run.process.wait(SECONDS)
        if code or run.audit().problems:
            raise SystemExit(f"the run ended with {code}: {run.audit().problems}; {run.how_it_stands()}")
        return result_of(run)


def result_of(run: RayRun) -> Result:
    """Return what is in the ledger."""
    with read_ledger(run.run_dir) as ledger:
        errors = tuple(report["evaluation"]["search_error"] for report in ledger.iterations())
        return Result(run.games(), errors, tuple(model.sha256 for model in ledger.models()))


def over_ssh(server: Sshd, folder: Path) -> dict[str, Any]:
    """Return the cluster's section with workers over SSH, which have the names of those on Ray."""
    names = [f"ray-{number}" for number in range(1, WORKERS + 1)]
    entries = [
        server.worker(
            name=name, directory=str(folder / name), python=sys.executable, processes=1, key_path=str(server.key)
        )
        for name in names
    ]
    workers = [entry.model_dump(mode="json", exclude_unset=True) for entry in entries]
    return {"ray": None, "workers": workers, "bootstrap": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=whole(1), default=2, help="how many runs of each kind (default: 2)")
    parser.add_argument("--iterations", type=whole(1), default=8, help="of each run (default: 8)")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ray-and-ssh-") as name:
        root = Path(name)
        made = ray_nodes(root / "nodes", **{f"node{number}": 1 for number in range(1, WORKERS + 1)})
        with made as nodes, running_sshd(root / "server", root / "user", environment=f"KEIMA_CACHE={CACHE}") as server:
            for seed in range(1, arguments.seeds + 1):
                ways = {
                    "Ray": {"ray": {"address": nodes.address, "seats": WORKERS}},
                    "SSH": over_ssh(server, root / f"hosts-{seed}"),
                }
                results = {
                    way: trained(
                        root / f"{way}-{seed}",
                        nodes,
                        section,
                        home=root / "user",
                        seed=seed,
                        iterations=arguments.iterations,
                    )
                    for way, section in ways.items()
                }
                for way, result in results.items():
                    errors = ", ".join(f"{error:.2%}" for error in result.errors)
                    print(f"seed {seed}, {way}: {result.games} games; moves that lose value: {errors}")
                same = results["Ray"].models == results["SSH"].models
                print(f"seed {seed}: the {len(results['Ray'].models)} models are {'the same' if same else 'different'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
