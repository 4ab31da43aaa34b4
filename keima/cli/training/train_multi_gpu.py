#!/usr/bin/env python3
"""Train a network by self-play on the GPUs of this machine: one process plays on each, and the first one trains.

    python scripts/train_multi_gpu.py --gpus 0,1 --iterations 2 --games-per-iter 100 --save-dir checkpoints_8gpu
    python scripts/train_multi_gpu.py --gpus cpu,cpu --minutes 60           two processes on the CPU
    python scripts/train_multi_gpu.py --network resnet                      a residual network (default: spiking)
    python scripts/train_multi_gpu.py --config configs/go9.yaml             another experiment (default: chess)
    python scripts/train_multi_gpu.py --save-dir checkpoints_8gpu --resume  continue a run, even after a power cut
    python scripts/train_multi_gpu.py --gpus cpu,cpu --smoke                smoke test, in a minute

Without GPUs, a process on the CPU stands in for each requested GPU. In every iteration all processes play with the same
network, with the games divided as evenly as possible, and then the network learns from them. A crashed process is
reported and restarted, once; its unfinished games go to the others, its finished ones count.

--save-dir is the run's folder. In addition to a run's usual files, checkpoint_iter_10.pt, checkpoint_iter_20.pt ... and
finally model_final.pt hold the weights for other PyTorch programs (state dictionaries), and training_stats.json all
metrics:

    keima watch --file checkpoints_8gpu/training_stats.json
    keima results --training checkpoints_8gpu/training_stats.json --last 5

Ctrl-C ends a run cleanly; a second one ends it at once. No finished game is lost, and --resume continues the run.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.named import find_experiment, flag_type
from keima.base.system.command_line import CommandLine
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_paths_exist, parse_before_imports, report_compiling_of
from keima.config.flags import add_set, add_setting, game_among, given_settings, whole
from keima.games import GAMES

RULE_WIDTH = 70  # of the lines above and below a title
DEFAULT_TIME_STEPS = 2  # more of them take longer in proportion; the network plays and learns with two
DEFAULT_ITERATIONS, GAMES_PER_ITERATION = 100, 100  # defaults of a new run
# A spiking network has none.
NO_OTHER_HEADS = {
    "predict_reply": False,
    "predict_ownership": False,
    "predict_score": False,
    "predict_future": False,
}
SETTINGS = {  # flags of settings whose default is the experiment's
    "--blocks": "network.blocks",
    "--channels": "network.channels",
    "--batch-size": "training.batch_size",
    "--lr": "training.learning_rate",
    "--minutes": "run.minutes",
    "--seed": "run.seed",
}
SAVED_GPUS = "gpus"  # in a run's folder: the devices that it last played on


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    return exit_code(lambda: begin_training(read_arguments(argv)))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; a flag that is not given is None."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    devices = "GPU numbers, such as 0,1, or cpu,cpu for two processes on the CPU (default: all GPUs, else all cores)"
    add("--gpus", help=devices)
    add("--workers-per-gpu", type=whole(), default=1, help="self-play processes per GPU (default: %(default)s)")
    add_setting(add, "--iterations", "run.iterations", usual=DEFAULT_ITERATIONS)
    add_setting(add, "--games-per-iter", "training.games_per_iteration", usual=GAMES_PER_ITERATION)
    add("--save-dir", type=Path, help="the run's folder (default: runs/<game>-<date>-<time>)")
    resume = "continue the run in --save-dir with its settings, except those given now"
    add("--resume", action="store_true", help=resume)
    what = parser.add_mutually_exclusive_group()
    which = f"{', '.join(sorted(GAMES))}, or a file of your own such as my_game.py (default: chess)"
    what.add_argument("--game", type=game_among(GAMES), metavar="GAME", help=which)
    what.add_argument("--config", type=flag_type(find_experiment), help="an experiment's settings; flags override them")
    add_setting(add, "--simulations", "search.num_simulations")
    add_setting(add, "--parallel-games", "self_play.parallel_games")
    kind = "type of network (default: spiking, or as in --config)"
    add("--network", dest="network.type", choices=("resnet", "spiking"), help=kind)
    add_setting(add, "--time-steps", "network.time_steps", usual=f"{DEFAULT_TIME_STEPS}, or as in --config")
    for flag, key in SETTINGS.items():
        add_setting(add, flag, key)
    add_set(add)
    add("--smoke", action="store_true", help="smoke test: the same run, shrunk to a minute")
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    line = make_parser()
    arguments = line.parse_args(argv)
    if arguments.resume and arguments.save_dir is None:
        line.error("--resume needs the --save-dir to continue")
    if arguments.resume and (arguments.config or arguments.game):
        line.error("--resume uses the run's own settings: leave --config and --game out")
    return arguments


if __name__ == "__main__":
    parse_before_imports(
        parse,
        lambda arguments: check_paths_exist(arguments.save_dir if arguments.resume else None, arguments.config),
        loading="PyTorch",
    )

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.cluster.local.preload")  # they load it at the same time as this one does

from rich.console import Console

from keima.base.files import write_atomically
from keima.cluster.local.worker_devices import DeviceSlot, device_slots, local_gpus, restrict_to_gpus
from keima.coach.session import exit_code, make_run_folder
from keima.config.load import load_settings
from keima.config.own_modules import stem_of
from keima.config.schema import Settings
from keima.report.files.trackers import require_trackers
from keima.report.terminal.live import TerminalConsole
from keima.report.terminal.next_steps import next_steps
from keima.trainers.multi_gpu import SessionEnd, make_synchronous_settings, train_on_devices
from keima.trainers.settings import apply_given, default_settings, load_shipped_game


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, and read into ``document`` the settings of the experiment or of the resumed run.

    Raises:
        ConfigError: they cannot be read.
        ValueError: there is no run to continue.
    """
    arguments = parse(argv)
    if arguments.resume:
        make_run_folder(arguments.save_dir, resume=True)
        arguments.document = load_settings(arguments.save_dir / "config.yaml").model_dump()
        arguments.gpus = arguments.gpus or read_saved_gpus(arguments.save_dir)
    elif arguments.config:
        arguments.document = load_settings(arguments.config).model_dump()
    else:
        arguments.document = new_experiment(arguments.game or "chess")
    return arguments


def read_saved_gpus(save_dir: Path) -> str | None:
    """Return the devices that the run last played on."""
    mark = save_dir / SAVED_GPUS
    return mark.read_text(encoding="utf-8") if mark.exists() else None


def new_experiment(game: str) -> dict[str, Any]:
    """Return the sections of a new run of ``game``.

    Strength is not measured during the run: use scripts/benchmark.py.
    """
    document = default_settings(load_shipped_game(game))
    document["network"] |= {"type": "spiking", "time_steps": DEFAULT_TIME_STEPS}
    document["run"] |= {"iterations": DEFAULT_ITERATIONS, "minutes": None}
    document["training"]["games_per_iteration"] = GAMES_PER_ITERATION
    # A plain buffer of the newest max_positions.
    document["training"]["window"] |= {
        "min_positions": 1,
        "growth_exponent": 1.0,
    }
    document["evaluation"] |= {"every": 0}
    return document


def settings_of(arguments: argparse.Namespace, slots: Sequence[DeviceSlot]) -> Settings:
    """Return the settings of the requested run: those of the experiment, with those on the command line.

    Raises:
        ValueError: a number is out of range.
    """
    given = given_settings(arguments)
    document = apply_given(arguments.document, given, smoke=arguments.smoke)
    folder = arguments.save_dir.resolve()
    document["run"] |= {"name": folder.name, "directory": str(folder.parent)}
    network, search, training = document["network"], document["search"], document["training"]
    if network["type"] == "spiking":
        network |= {"time_steps": network["time_steps"] or DEFAULT_TIME_STEPS} | NO_OTHER_HEADS
    else:
        network["time_steps"] = None
    search["cheap_simulations"] = min(search["cheap_simulations"], search["num_simulations"])
    window = training["window"]
    window["min_positions"] = max(window["min_positions"], training["batch_size"])
    return make_synchronous_settings(document, slots, given=given)


def begin_training(arguments: argparse.Namespace) -> int:
    """Train, and print where the output is."""
    slots = device_slots(arguments.gpus, local_gpus(), cores=count_usable_cores(), per_device=arguments.workers_per_gpu)
    if arguments.save_dir is None:
        arguments.save_dir = Path("runs") / f"{arguments.document['game']['name']}-{time.strftime('%Y%m%d-%H%M%S')}"
    settings = settings_of(arguments, slots)
    require_trackers(settings.run.trackers)
    make_run_folder(arguments.save_dir, resume=arguments.resume, option="--save-dir")
    if arguments.gpus:
        write_atomically(arguments.save_dir / SAVED_GPUS, arguments.gpus.encode())
    restrict_to_gpus(slots)
    console = TerminalConsole(highlight=False)

    def say(line: str) -> None:
        console.print(line, style="red" if line.startswith("ERROR") else None, markup=False, soft_wrap=True)

    for line in banner(settings, slots):
        say(line)
    if arguments.gpus and "cpu" not in arguments.gpus and not slots[0].device:
        say(f"No GPU was found: {len(slots)} processes play on the CPU instead of GPUs {arguments.gpus}.")
    say("")
    ended = train_on_devices(arguments.save_dir, settings, slots, resume=arguments.resume, say=say)
    print_summary(console, arguments.save_dir, ended)
    return INTERRUPTED if ended.stopped else 0


def banner(settings: Settings, slots: Sequence[DeviceSlot]) -> list[str]:
    """Return the lines that a run prints first: what it is, and where it trains and plays."""
    kind = " SNN" if settings.network.type == "spiking" else ""
    devices = list(dict.fromkeys(slot.title for slot in slots))
    numbers = [int(title.split()[1]) for title in devices]
    return [
        "=" * RULE_WIDTH,
        f"  Multi-GPU {stem_of(settings.game.name).replace('_', ' ').title()}{kind} Training",
        "=" * RULE_WIDTH,
        f"Primary training device: {f'cuda:{numbers[0]}' if slots[0].device else 'cpu'}",
        f"Parallel self-play {devices[0].split()[0]}s: {numbers}",
    ]


def print_summary(console: Console, save_dir: Path, ended: SessionEnd) -> None:
    """Print where the run's files are, and what to do next."""
    if ended.report:
        report = ended.report
        console.print(
            f"{report.iteration} iterations, {report.total_games:,} games, {report.total_positions:,} positions."
        )
    console.print(f"The weights are in {ended.model}", soft_wrap=True)
    again = f"python scripts/train_multi_gpu.py --save-dir {save_dir} --resume" if ended.stopped else ""
    for line in next_steps(save_dir, view=f"--training {save_dir}/training_stats.json --last 5", resume=again):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
