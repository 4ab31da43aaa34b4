#!/usr/bin/env python3
"""Check that games travel between processes and become tensors: two processes play chess, and their games are read.

    python test_multiprocessing_fix.py                 the first two GPUs, or two processes on the CPU
    python test_multiprocessing_fix.py --gpus 0,1

It takes seconds, or a minute if nothing is compiled yet, and leaves no files. It is scripts/train_multi_gpu.py, shrunk.
The guide to chess on several GPUs begins with it; Keima's own tests run by make test.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from keima.base.system.signals import handle_interrupts
from keima.cli.training.train_multi_gpu import read_arguments, settings_of
from keima.cluster.local.worker_devices import device_slots, local_gpus, restrict_to_gpus
from keima.coach.session import exit_code
from keima.data.ledger import read_ledger
from keima.data.receive import load_if_intact
from keima.games import load_game
from keima.learning.learner import copy_to_device
from keima.networks.inference.evaluator import pick_device
from keima.replay.window import ReplayWindow
from keima.trainers.multi_gpu import train_on_devices

SMALLEST = ("--smoke", "--iterations", "1", "--games-per-iter", "2", "--simulations", "1")


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="0,1", help="GPU numbers, or cpu,cpu (default: %(default)s)")
    asked: str = parser.parse_args(argv).gpus
    return exit_code(lambda: check(asked))


def check(asked: str) -> int:
    """Play, read the games, and print what they are."""
    console = Console(highlight=False)
    gpus = local_gpus()
    slots = device_slots("0" if asked == "0,1" and len(gpus) == 1 else asked, gpus, cores=2)
    with TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        settings = settings_of(read_arguments([*SMALLEST, "--save-dir", str(run_dir)]), slots)
        restrict_to_gpus(slots)
        errors: list[str] = []
        ended = train_on_devices(
            run_dir, settings, slots, say=lambda line: errors.append(line) if line.startswith("ERROR") else None
        )
        game = load_game(settings.game.name, **settings.game.options)
        window = ReplayWindow(game, capacity_positions=1_000_000)
        with read_ledger(run_dir) as ledger:
            for row in ledger.received_batches():
                if batch := load_if_intact(run_dir, row, log_event=errors.append):
                    window.add(batch)
    if errors or ended.stopped or window.num_games != settings.training.games_per_iteration:
        raise ValueError(
            "; ".join(errors) or f"{window.num_games} of {settings.training.games_per_iteration} games came back"
        )
    states = copy_to_device(window.sample(8, 1), pick_device(settings.training.device)).observations
    console.print("✓ Multi-GPU test completed successfully!")
    console.print(f"  State type: {type(states)}", markup=False)
    console.print("  ✓ States are PyTorch tensors (correctly converted)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
