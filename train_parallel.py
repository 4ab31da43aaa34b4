#!/usr/bin/env python3
"""Train a network to play 2048 by self-play on all cores and GPUs of this machine.

    python train_parallel.py                                        workers by the machine's cores and GPUs
    python train_parallel.py --workers 16                           so many processes, spread evenly over the GPUs
    python train_parallel.py --workers-per-gpu 2                    so many processes for each GPU
    python train_parallel.py --filters 64 --blocks 5 --epochs 100 --games-per-epoch 32 --batch-size 64 --lr 0.001 --simulations 50
    python train_parallel.py --self-play-device cpu                 play on the CPU, and train on the GPU
    python train_parallel.py --checkpoint checkpoints/model_epoch_50.pth       begin with these weights
    python train_parallel.py --run-dir runs/big --resume            go on after any end, a power cut included
    python train_parallel.py --smoke                                the same program in a minute, to see that all is well

Everything that a run writes lies in one folder, runs/twenty48-<date>-<time> or --run-dir. Besides, the weights are
written to checkpoints/model_epoch_N.pth every 10 epochs and at the end, for --checkpoint and for other PyTorch programs
(a state dictionary). A file of that name is replaced. A run that begins with model_epoch_50.pth counts on from there:
its first file is model_epoch_60.pth.

Ctrl-C ends a run cleanly: the workers hand over the games that they have finished. A second Ctrl-C ends it at once;
nothing that was finished is lost then either.

If CUDA hangs or runs out of memory: let the workers play on the CPU (--self-play-device cpu; training still uses the
GPU), let fewer play on each GPU (--workers-per-gpu 2), or use some of the GPUs alone (CUDA_VISIBLE_DEVICES=0,1 python
train_parallel.py).
"""

if __name__ == "__main__":
    from training.common.signals import ends_at_once

    ends_at_once()  # before the imports, which take seconds

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.flags import as_setting, whole
from distributed.local import processes
from training.common.run_folder import see_run_folder
from training.common.signals import INTERRUPTED, interruptible
from training.common.start import before_imports, reports_compiling, see_file

CHECKPOINTS = Path("checkpoints")
SMOKE = {"epochs": 2, "games_per_epoch": 8, "batch_size": 16, "simulations": 4, "filters": 8, "blocks": 1}


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 130 after Ctrl-C, 2 when something is wrong that can be put right."""
    return exit_code("train_parallel.py", lambda: train(read_arguments(argv)))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--epochs", type=as_setting("run.iterations"), default=100, help="end after so many (default: %(default)s)")
    add(
        "--games-per-epoch",
        type=as_setting("training.games_per_iteration"),
        default=32,
        help="games played in an epoch, exactly so many (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=as_setting("training.batch_size"),
        default=64,
        help="positions in an optimizer step (default: %(default)s)",
    )
    add(
        "--lr",
        type=as_setting("training.learning_rate"),
        default=0.001,
        help="the learning rate (default: %(default)s)",
    )
    add(
        "--simulations",
        type=as_setting("search.num_simulations"),
        default=50,
        help="of the search for each move (default: %(default)s)",
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
    share = "over several GPUs rounded down to what divides evenly"
    workers.add_argument(
        "--workers",
        type=as_setting("self_play.workers"),
        help=f"processes that play, {share} (default: one for each core, at least 2 for each GPU)",
    )
    workers.add_argument("--workers-per-gpu", type=whole(), help="processes that play on each GPU")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what is computed on (default: the GPUs where there are any)",
    )
    where = (
        "what the workers play on; cpu keeps them off the GPUs, training does not change (default: as --device says)"
    )
    add("--self-play-device", choices=("auto", "cpu"), default="auto", help=where)
    add(
        "--checkpoint",
        type=Path,
        help="begin with the weights in this file, of a network with the same --filters and --blocks",
    )
    add("--run-dir", type=Path, help="the run's folder (default: runs/twenty48-<date>-<time>)")
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --run-dir, as it was told then but for what is told now",
    )
    add(
        "--minutes",
        type=as_setting("run.minutes"),
        help="end after so many minutes in all, if the epochs are not over sooner",
    )
    add("--seed", type=as_setting("run.seed"), default=1, help="of everything random (default: %(default)s)")
    add("--smoke", action="store_true", help="shrink all numbers to a run of a minute; the code that runs is the same")
    return parser


def parse(argv: Sequence[str] | None, before: Mapping[str, Any] | None = None) -> argparse.Namespace:
    """The arguments on the command line; what it leaves open is as ``before`` has it."""
    line = parser()
    line.set_defaults(**before or {})
    arguments = line.parse_args(argv)
    if arguments.resume and arguments.run_dir is None:
        line.error("--resume needs the --run-dir to go on with")
    if arguments.resume and arguments.checkpoint is not None:
        line.error("--checkpoint begins a run, --resume goes on with one: give one of them")
    if arguments.workers_per_gpu is not None:
        arguments.workers = None
    return arguments


def see(arguments: argparse.Namespace) -> None:
    """See that what the command line names is there.

    Raises:
        ValueError: it is not.
    """
    if arguments.resume:
        see_run_folder(arguments.run_dir, resume=True)
    if arguments.checkpoint:
        see_file(arguments.checkpoint)


if __name__ == "__main__":
    before_imports(parse, see, loading="PyTorch")
    processes.prepare()  # they load it at the same time as this one does

from rich.console import Console

from configs.load import load_settings
from distributed.local.parallel_zero import ParallelZeroTrainer
from distributed.local.wiring import trainer_settings
from games.twenty48.rules import GameRules
from training.common.reports import IterationReport
from training.networks.network import seed_weights
from training.networks.weights_file import CorruptWeights, load_weights
from training.networks.zero_network import ZeroNetwork
from training.run.session import exit_code
from views.next_steps import next_steps


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says, and of a run that goes on, what it was told when it was begun.

    Raises:
        ConfigError, ValueError: the run's own settings cannot be read, or are of another game.
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
    """The arguments of the run whose settings lie at ``config``.

    Raises:
        ConfigError: they cannot be read.
        ValueError: it is a run of another game.
    """
    settings = load_settings(config)
    if settings.game.name != "twenty48":
        raise ValueError(
            f"{config.parent} is a run of {settings.game.name}: go on with it by start_main.py --run-dir {config.parent} --resume"
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
    """Train, and say where everything lies."""
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
    """Put the weights in a file into ``model``.

    Raises:
        CorruptWeights: the file is damaged, or its weights are of another network.
        OSError: it is missing or unreadable.
    """
    weights = load_weights(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise CorruptWeights(
            f"{path} is of another network; are --filters, --blocks, --height and --width as they were? {first}"
        ) from error


def epochs_of(path: Path | None) -> int:
    """The number in a file's name such as model_epoch_50.pth; 0 where there is none."""
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
