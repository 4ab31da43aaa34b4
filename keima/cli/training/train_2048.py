#!/usr/bin/env python3
"""Train a network to play 2048 by self-play on all cores and GPUs of this machine.

    python train_parallel.py                                    two workers per GPU, or one per core without GPUs
    python train_parallel.py --workers 16                       16 workers, spread evenly over the GPUs
    python train_parallel.py --workers-per-gpu 2                two workers on each GPU
    python train_parallel.py --filters 64 --blocks 5 --epochs 100 --games-per-epoch 32 --batch-size 64 --lr 0.001
    python train_parallel.py --self-play-device cpu             play on the CPU, train on the GPU
    python train_parallel.py --checkpoint checkpoints/model_epoch_50.pth       start from these weights
    python train_parallel.py --run-dir runs/big --resume        continue a run, even after a power cut
    python train_parallel.py --smoke                            smoke test: the same program, shrunk to a minute

A run writes everything to one folder, runs/twenty48-<date>-<time> or --run-dir. In addition, the weights go to
checkpoints/model_epoch_N.pth every 10 epochs and at the end, for --checkpoint and for other PyTorch programs (a state
dictionary). A file of the same name is replaced. A run that starts from model_epoch_50.pth continues its count: its
first file is model_epoch_60.pth.

Ctrl-C ends a run cleanly: the workers hand over their finished games. A second Ctrl-C ends it at once; no finished game
is lost then either.

If CUDA hangs or runs out of memory, let the workers play on the CPU (--self-play-device cpu; training still uses the
GPU), start fewer per GPU (--workers-per-gpu 2), or use only some GPUs:

    CUDA_VISIBLE_DEVICES=0,1 python train_parallel.py
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before the imports, which take seconds

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keima.base.system.command_line import CommandLine
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_paths_exist, parse_before_imports, report_compiling_of
from keima.config.descriptions import describe_setting
from keima.config.flags import add_set, add_setting, given_settings, whole

CHECKPOINTS = Path("checkpoints")
DEFAULTS = {  # the guide's
    "run.iterations": 100,
    "run.seed": 1,
    "training.games_per_iteration": 32,
    "training.batch_size": 64,
    "training.learning_rate": 0.001,
    "search.num_simulations": 50,
    "network.channels": 64,
    "network.blocks": 5,
}
SETTINGS = {
    "--epochs": "run.iterations",
    "--games-per-epoch": "training.games_per_iteration",
    "--batch-size": "training.batch_size",
    "--lr": "training.learning_rate",
    "--simulations": "search.num_simulations",
    "--filters": "network.channels",
    "--blocks": "network.blocks",
    "--minutes": "run.minutes",
    "--seed": "run.seed",
}
DEVICES = (
    ("--device", "training.device", ("auto", "cpu", "cuda")),
    ("--self-play-device", "self_play.device", ("auto", "cpu")),
)
SMOKE_WORKERS = 2


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    return exit_code(lambda: run_training(parse(argv)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; a flag that is not given is None."""
    parser = CommandLine(__doc__)
    add = parser.add_argument

    for flag, key in SETTINGS.items():
        add_setting(add, flag, key, usual=DEFAULTS.get(key))
    add(
        "--height",
        dest="game.options.height",
        metavar="N",
        type=whole(2, 5),
        help="rows of the board, 2 to 5 (default: 4)",
    )
    add(
        "--width",
        dest="game.options.width",
        metavar="N",
        type=whole(2, 5),
        help="columns of the board, 2 to 5 (default: 4)",
    )
    workers = parser.add_mutually_exclusive_group()
    share = "2 per GPU, or one per core without GPUs; an even number for each GPU"
    add_setting(workers.add_argument, "--workers", "self_play.workers", usual=share)
    workers.add_argument("--workers-per-gpu", type=whole(), help="self-play processes per GPU")
    for flag, key, devices in DEVICES:
        add(flag, dest=key, choices=devices, help=describe_setting(key))
    weights = "start from the weights in this file, of a network with the same --filters and --blocks"
    add("--checkpoint", type=Path, help=weights)
    add("--run-dir", type=Path, help="the run's folder (default: runs/twenty48-<date>-<time>)")
    resume = "continue the run in --run-dir with its settings, except those given now"
    add("--resume", action="store_true", help=resume)
    add_set(add)
    add("--smoke", action="store_true", help="smoke test: the same run, shrunk to a minute")
    arguments = parser.parse_args(argv)
    if arguments.resume and arguments.run_dir is None:
        parser.error("--resume needs the --run-dir to continue")
    if arguments.resume and arguments.checkpoint is not None:
        parser.error("--checkpoint starts a run and --resume continues one: give one of them")
    return arguments


if __name__ == "__main__":
    parse_before_imports(
        parse,
        lambda arguments: check_paths_exist(arguments.run_dir if arguments.resume else None, arguments.checkpoint),
        loading="PyTorch",
    )

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.cluster.local.preload")  # they load it at the same time as this one does

from rich.console import Console

from keima.base.reports.run_reports import IterationReport
from keima.coach.session import exit_code
from keima.config.commands import keima
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.games import load_game
from keima.games.twenty48.rules import GameRules
from keima.networks.files.weights_file import CorruptWeights, load_weights
from keima.networks.network import seed_weights
from keima.networks.zero_network import ZeroNetwork
from keima.report.terminal.next_steps import next_steps
from keima.trainers.parallel_zero import ParallelZeroTrainer
from keima.trainers.settings import apply_given, trainer_settings, validate_settings


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the requested run: the guide's or those of the resumed run, with those on the command
    line.

    Raises:
        ConfigError, ValueError: the run's settings cannot be read, or are of another game; a number is out of range.
    """
    given, run_dir = given_settings(arguments), arguments.run_dir
    if arguments.resume and (run_dir / "config.yaml").exists():
        document = load_settings(run_dir / "config.yaml").model_dump()
        if document["game"]["name"] != "twenty48":
            again = keima(f"resume {run_dir}")
            raise ValueError(f"{run_dir} is a run of {document['game']['name']}: continue it by {again}")
        if arguments.workers_per_gpu is not None:
            document["self_play"]["workers"] = "auto"
    else:
        size = {name: given.get(f"game.options.{name}", 4) for name in ("height", "width")}
        document = trainer_settings(GameRules(**size), DEFAULTS).model_dump()
    if run_dir:
        given |= {"run.name": run_dir.name, "run.directory": str(run_dir.parent)}
    if arguments.smoke and arguments.workers_per_gpu is None and document["self_play"]["workers"] == "auto":
        given = {"self_play.workers": SMOKE_WORKERS, **given}
    return validate_settings(apply_given(document, given, smoke=arguments.smoke))


def run_training(arguments: argparse.Namespace) -> int:
    """Train, and print where the output is."""
    settings = settings_of(arguments)
    rules = load_game("twenty48", **settings.game.options)
    seed_weights(settings.run.seed)
    filters, blocks = settings.network.channels, settings.network.blocks
    model = ZeroNetwork(rules.height, rules.width, 16, filters=filters, blocks=blocks)
    if arguments.checkpoint:
        load_initial_weights(model, arguments.checkpoint)
    workers = settings.self_play.workers
    trainer = ParallelZeroTrainer(
        model=model,
        rules=rules,
        num_workers=None if workers == "auto" else workers,
        workers_per_gpu=arguments.workers_per_gpu,
        settings=settings,
        resume=arguments.resume,
        checkpoint_dir=CHECKPOINTS,
        epochs_before=epochs_in_name(arguments.checkpoint),
    )
    report = trainer.train(
        epochs=settings.run.iterations,
        games_per_epoch=settings.training.games_per_iteration,
        batch_size=settings.training.batch_size,
        lr=settings.training.learning_rate,
        simulations=settings.search.num_simulations,
    )
    print_summary(trainer, report)
    return INTERRUPTED if trainer.stopped else 0


def load_initial_weights(model: Any, path: Path) -> None:
    """Load the weights in a file into ``model``.

    Raises:
        CorruptWeights: the file is damaged, or belongs to another network.
        OSError: it is missing or unreadable.
    """
    weights = load_weights(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise CorruptWeights(
            f"{path} belongs to another network; have --filters, --blocks, --height or --width changed? {first}"
        ) from error


def epochs_in_name(path: Path | None) -> int:
    """Return the number in a file name such as model_epoch_50.pth; 0 if there is none."""
    match = re.fullmatch(r"model_epoch_([0-9]{1,9})\.pth", path.name) if path else None
    return int(match[1]) if match else 0


def print_summary(trainer: ParallelZeroTrainer, report: IterationReport | None) -> None:
    """Print where the run's files are, and what to do next."""
    console = Console(highlight=False)
    if report:
        console.print(f"{report.iteration} epochs, {report.total_games:,} games, {report.total_positions:,} positions.")
    if trainer.weights_file:
        console.print(f"The weights are in {trainer.weights_file}; start from them with --checkpoint", soft_wrap=True)
    resume = f"python train_parallel.py --run-dir {trainer.run_dir} --resume" if trainer.stopped else ""
    for line in next_steps(trainer.run_dir, resume=resume):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
