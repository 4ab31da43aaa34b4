#!/usr/bin/env python3
"""Train a network to play 2048 by self-play on all cores and GPUs of this machine.

    python train_parallel.py                                    one worker per core, at least two per GPU
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
    from keima.base.system.signals import ends_at_once

    ends_at_once()  # before the imports, which take seconds

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keima.base.system.signals import INTERRUPTED, interruptible
from keima.base.system.start import before_imports, reports_compiling, see_inputs
from keima.config.flags import as_setting, whole

CHECKPOINTS = Path("checkpoints")
SMOKE = {"epochs": 2, "games_per_epoch": 8, "batch_size": 16, "simulations": 4, "filters": 8, "blocks": 1}


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    return exit_code("train_parallel.py", lambda: train(read_arguments(argv)))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--epochs", type=as_setting("run.iterations"), default=100, help="end after this many (default: %(default)s)")
    add(
        "--games-per-epoch",
        type=as_setting("training.games_per_iteration"),
        default=32,
        help="games in an epoch, exactly this many (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=as_setting("training.batch_size"),
        default=64,
        help="positions per optimizer step (default: %(default)s)",
    )
    add(
        "--lr",
        type=as_setting("training.learning_rate"),
        default=0.001,
        help="learning rate (default: %(default)s)",
    )
    add(
        "--simulations",
        type=as_setting("search.num_simulations"),
        default=50,
        help="per move (default: %(default)s)",
    )
    add(
        "--filters",
        type=as_setting("network.channels"),
        default=64,
        help="channels of the network's convolutions (default: %(default)s)",
    )
    add(
        "--blocks",
        type=as_setting("network.blocks"),
        default=5,
        help="residual blocks of the network (default: %(default)s)",
    )
    add("--height", type=whole(2, 5), default=4, help="rows of the board, 2 to 5 (default: %(default)s)")
    add("--width", type=whole(2, 5), default=4, help="columns of the board, 2 to 5 (default: %(default)s)")
    workers = parser.add_mutually_exclusive_group()
    share = "rounded down to divide evenly over several GPUs"
    workers.add_argument(
        "--workers",
        type=as_setting("self_play.workers"),
        help=f"self-play processes, {share} (default: one per core, at least 2 per GPU)",
    )
    workers.add_argument("--workers-per-gpu", type=whole(), help="self-play processes per GPU")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to train and play (default: on the GPUs, if there are any)",
    )
    where = "where the workers play; cpu keeps them off the GPUs, training is unaffected (default: as --device)"
    add("--self-play-device", choices=("auto", "cpu"), default="auto", help=where)
    add(
        "--checkpoint",
        type=Path,
        help="start from the weights in this file, of a network with the same --filters and --blocks",
    )
    add("--run-dir", type=Path, help="the run's folder (default: runs/twenty48-<date>-<time>)")
    add(
        "--resume",
        action="store_true",
        help="continue the run in --run-dir with its settings, except those given now",
    )
    add(
        "--minutes",
        type=as_setting("run.minutes"),
        help="end after this many minutes in total, if the epochs do not end sooner",
    )
    add("--seed", type=as_setting("run.seed"), default=1, help="seed of all random numbers (default: %(default)s)")
    add("--smoke", action="store_true", help="smoke test: the same run, shrunk to a minute")
    return parser


def parse(argv: Sequence[str] | None, before: Mapping[str, Any] | None = None) -> argparse.Namespace:
    """The arguments on the command line, with defaults from ``before``."""
    line = parser()
    line.set_defaults(**before or {})
    arguments = line.parse_args(argv)
    if arguments.resume and arguments.run_dir is None:
        line.error("--resume needs the --run-dir to continue")
    if arguments.resume and arguments.checkpoint is not None:
        line.error("--checkpoint starts a run and --resume continues one: give one of them")
    if arguments.workers_per_gpu is not None:
        arguments.workers = None
    return arguments


if __name__ == "__main__":
    before_imports(
        parse,
        lambda arguments: see_inputs(arguments.run_dir if arguments.resume else None, arguments.checkpoint),
        loading="PyTorch",
    )

    from keima.base.system.processes import prepare  # only now: --help needs nothing of it

    prepare("keima.cluster.local.preloaded")  # they load it at the same time as this one does

from rich.console import Console

from keima.base.reports import IterationReport
from keima.coach.session import exit_code
from keima.config.load import load_settings
from keima.games.twenty48.rules import GameRules
from keima.networks.files.model_file import CorruptWeights, load_weights
from keima.networks.network import seed_weights
from keima.networks.zero_network import ZeroNetwork
from keima.report.terminal.next_steps import next_steps
from keima.trainers.parallel_zero import ParallelZeroTrainer
from keima.trainers.wiring import trainer_settings


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments on the command line; a resumed run adds those that it was started with.

    Raises:
        ConfigError, ValueError: the run's settings cannot be read, or are of another game.
    """
    arguments = parse(argv)
    if arguments.resume and (arguments.run_dir / "config.yaml").exists():
        arguments = parse(argv, saved_options(arguments.run_dir / "config.yaml"))
    if arguments.smoke:
        length = parse(argv, {"epochs": None}).epochs
        shrunk = {name: min(getattr(arguments, name), limit) for name, limit in SMOKE.items()}
        vars(arguments).update(shrunk | ({"epochs": length} if length else {}))
        if arguments.workers is None and arguments.workers_per_gpu is None:
            arguments.workers = 2
    return arguments


def saved_options(config: Path) -> dict[str, Any]:
    """The arguments of the run with the settings in ``config``.

    Raises:
        ConfigError: they cannot be read.
        ValueError: it is a run of another game.
    """
    settings = load_settings(config)
    if settings.game.name != "twenty48":
        raise ValueError(
            f"{config.parent} is a run of {settings.game.name}: "
            f"continue it by start_main.py --run-dir {config.parent} --resume"
        )
    return {
        "epochs": settings.run.iterations,
        "games_per_epoch": settings.training.games_per_iteration,
        "batch_size": settings.training.batch_size,
        "lr": settings.training.learning_rate,
        "simulations": settings.search.num_simulations,
        "workers": None if settings.self_play.workers == "auto" else settings.self_play.workers,
        "filters": settings.network.channels,
        "blocks": settings.network.blocks,
        "height": settings.game.options.get("height", 4),
        "width": settings.game.options.get("width", 4),
        "device": settings.training.device,
        "self_play_device": settings.self_play.device,
        "minutes": settings.run.minutes,
        "seed": settings.run.seed,
    }


def train(arguments: argparse.Namespace) -> int:
    """Train, and print where the output is."""
    rules = GameRules(arguments.height, arguments.width)
    seed_weights(arguments.seed)
    model = ZeroNetwork(arguments.height, arguments.width, 16, filters=arguments.filters, blocks=arguments.blocks)
    if arguments.checkpoint:
        begin_with(model, arguments.checkpoint)
    chosen = {
        "run.seed": arguments.seed,
        "run.minutes": arguments.minutes,
        "training.device": arguments.device,
        "self_play.device": arguments.self_play_device,
    }
    if run_dir := arguments.run_dir:
        chosen |= {"run.name": run_dir.name, "run.directory": str(run_dir.parent)}
    trainer = ParallelZeroTrainer(
        model=model,
        rules=rules,
        num_workers=arguments.workers,
        workers_per_gpu=arguments.workers_per_gpu,
        settings=trainer_settings(rules, chosen),
        resume=arguments.resume,
        checkpoint_dir=CHECKPOINTS,
        epochs_before=epochs_of(arguments.checkpoint),
    )
    report = trainer.train(
        epochs=arguments.epochs,
        games_per_epoch=arguments.games_per_epoch,
        batch_size=arguments.batch_size,
        lr=arguments.lr,
        simulations=arguments.simulations,
    )
    print_summary(trainer, report)
    return INTERRUPTED if trainer.stopped else 0


def begin_with(model: Any, path: Path) -> None:
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


def epochs_of(path: Path | None) -> int:
    """The number in a file name such as model_epoch_50.pth; 0 if there is none."""
    match = re.fullmatch(r"model_epoch_([0-9]{1,9})\.pth", path.name) if path else None
    return int(match[1]) if match else 0


def print_summary(trainer: ParallelZeroTrainer, report: IterationReport | None) -> None:
    """Print where the run's files are, and what to do next."""
    console = Console(highlight=False)
    if report:
        console.print(f"{report.iteration} epochs, {report.total_games:,} games, {report.total_positions:,} positions.")
    if trainer.weights_file:
        console.print(f"The weights are in {trainer.weights_file}; start from them with --checkpoint", soft_wrap=True)
    resume = f"train_parallel.py --run-dir {trainer.run_dir} --resume" if trainer.stopped else ""
    for line in next_steps(trainer.run_dir, resume=resume):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
