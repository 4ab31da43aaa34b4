#!/usr/bin/env python3
"""Train a big network on files of games, on one GPU, all GPUs of a machine, or several machines.

    keima big-learner                               one process, on the newest run's games
    keima big-learner --data runs/chess --epochs 2  on the newest games of a run
    keima big-learner --config 20x256               settings from a file; flags override it
    keima big-learner --world-size 8                one process for each of 8 GPUs of this machine
    ./launch_distributed_training.sh --gpus 8 --batch-size 2048 --mixed-precision
    torchrun --nproc-per-node 8 --module keima big-learner --data runs/chess --mixed-precision
    keima big-learner --data runs/chess --world-size 2 --rank 0 --master-addr 192.168.1.100  ranks by hand

--data is a run's folder, a folder with batches of games (*.games), PGN files of chess (*.pgn, *.pgn.zst) or SGF files
of Go (*.sgf), or one such file. The default is the newest run under runs/ that has games, or else the sample games that
come with Keima. An epoch learns from every position once, in an order that depends only on --seed. Unusable games are
skipped and reported with file and line.

--config is an experiment such as configs/go9.yaml: its game, network and training, and optionally a section big_learner
with the settings that are flags here (see configs/20x256.yaml). Unknown keys and invalid values are rejected with their
line and the expected type.

--batch-size is the total over all ranks, which share it evenly, so N ranks learn what one process learns from the same
games, up to rounding. Batch norm uses groups of --norm-batch positions of the total batch, whichever ranks they are on.
If a rank's share does not fit in memory, it is split and its gradients are summed. If there are fewer GPUs than ranks,
one rank per GPU trains; without GPUs, at most one per core.

Only rank 0 prints, and saves AlphaZeroNet_20x256_distributed.pt in --save-dir. --resume continues from it exactly, with
any number of ranks; torchrun does so automatically after a rank has died. Without --save-dir, each run gets its own
folder: checkpoints, checkpoints_2 ... Next to the checkpoint, a .safetensors file has the averaged weights, which keima
play loads. Ctrl-C saves a checkpoint and exits.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before the imports, which take seconds

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keima.base.disk_words import error_text
from keima.base.named import find_experiment, flag_type
from keima.base.run_folder import RUNS
from keima.base.system.command_line import CommandLine, program_name, relaunch_command
from keima.base.system.limits import count_usable_cores
from keima.base.system.logs import package_logger
from keima.base.system.signals import INTERRUPTED, discard_output_of_lost_terminal, handle_interrupts, stop_on_signals
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import HIGHEST_PORT, add_section, add_setting, as_setting, game_among, whole
from keima.games import GAMES
from keima.learning.ranks.meeting import DEFAULT_PORT
from keima.paths import find_file

SETTINGS = "keima.learning.dataset_settings.BigExperiment"  # by name: importing it would delay --help
USUAL_BATCH = 256  # to which learning rates are scaled
PLACE_FLAGS = ("rank", "world_size", "local_rank", "master_addr", "master_port")
CHECKPOINTS, CHECKPOINT_NAME = Path("checkpoints"), "AlphaZeroNet_{}_distributed"
SIZES = {"blocks": 20, "channels": 256}


class RefusedByAll(ValueError):
    """An error of every rank, which rank 0 reports."""


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    words = strip_separator(argv)
    arguments = make_parser().parse_args(words)
    console = Console(stderr=True, highlight=False)
    who = program_name()
    try:
        if arguments.check:
            check_plan(arguments, world_size=arguments.world_size or 1)
            return 0
        if is_launcher(arguments):
            return start_ranks(arguments, words)
        place = RankInfo(**{name: getattr(arguments, name) for name in PLACE_FLAGS})
        room = partial(count_ranks_here, arguments)
        with join_ranks(place, device=arguments.device, backend=arguments.backend, room=room) as ranks:
            who += "" if ranks.is_main else f", rank {ranks.rank}"
            try:
                return begin_training(arguments, ranks)
            except RefusedByAll:
                if ranks.is_main:
                    raise
                return 2
    except SurplusRank:
        return 0
    except (ValueError, TrainingDiverged, OSError, RuntimeError) as error:  # a lost rank, or no memory: RuntimeError
        console.print(f"{who}: {error_text(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def strip_separator(argv: Sequence[str] | None) -> list[str]:
    """Return the command line without the "--" that may separate the launcher's flags from this program's."""
    return [word for word in (sys.argv[1:] if argv is None else argv) if word != "--"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; a flag that is not given is None."""
    parser = CommandLine(
        __doc__,
        parents=[launch_parser()],
        allow_abbrev=False,  # abbreviated flags for the starting process would be passed on to the ranks
    )
    what = parser.add_argument_group("the training").add_argument
    what(
        "--config",
        type=flag_type(find_experiment),
        help="an experiment: game, network, training, big_learner (default: 20x256, for the run's game or chess)",
    )
    what(
        "--game",
        type=game_among(GAMES),
        metavar="GAME",
        help=f"{', '.join(sorted(GAMES))}, or a file of your own such as my_game.py, if neither --config nor --data "
        "names the game (default: chess, or that of the newest run)",
    )
    for name, size in SIZES.items():
        add_setting(what, f"--{name}", f"network.{name}", dest=name, usual=size)
    what("--save-dir", type=Path, help=f"output folder (default: {CHECKPOINTS}, or the first unused {CHECKPOINTS}_N)")
    what(
        "--resume",
        action="store_true",
        help="continue the newest run, or the one in --save-dir, with its settings",
    )
    what("--check", action="store_true", help="only check that the command line is valid, for --world-size ranks")
    add_section(parser.add_argument_group("learning").add_argument, "big_learner", SETTINGS)
    where = parser.add_argument_group("devices and ranks (torchrun sets the ranks)").add_argument
    where("--rank", type=whole(0), help="number of this rank, from 0, if you start ranks by hand")
    where("--local-rank", type=whole(0), help="number of this rank on its machine, which selects the GPU")
    where("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: nccl between GPUs, gloo without")
    where("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    where(
        "--num-workers",
        type=whole(0),
        help="processes per rank that prepare batches (default: none on a CPU, up to four with a GPU)",
    )
    where(
        "--micro-batch",
        type=whole(),
        help="positions that a rank computes at once (default: as many as fit, measured at the start)",
    )
    where("--shard-optimizer", action="store_true", help="each rank keeps only its part of the optimizer's state")
    where("--threads", type=as_setting("training.threads"), help="CPU threads per rank (default: its share of cores)")
    return parser


def launch_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that say which ranks to start, and where they meet."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    which = parser.add_argument_group("starting ranks (torchrun sets all of these)").add_argument
    which("--world-size", type=whole(), help="number of ranks; without --rank they are started here")
    which("--launch", action="store_true", help="start this machine's ranks, as launch_distributed_training.sh does")
    which("--gpus", type=whole(), help="number of ranks, with --launch (default: one per GPU of this machine)")
    which("--nodes", type=whole(), default=1, help="machines that run --launch (default: %(default)s)")
    which("--node-rank", type=whole(0), default=0, help="number of this machine, from 0 (default: %(default)s)")
    which(
        "--max-restarts",
        type=whole(0),
        default=3,
        help="restarts of all ranks after one has died (default: %(default)s)",
    )
    which("--master-addr", help="the machine of rank 0, or of --node-rank 0 (default: localhost)")
    which("--master-port", type=whole(1, HIGHEST_PORT), help=f"a free port there (default: {DEFAULT_PORT})")
    return parser


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists. A checkpoint may be on the machine of another rank.

    Raises:
        ValueError: it does not.
    """
    if arguments.data and not find_file(arguments.data).exists():
        raise ValueError(
            f"--data {arguments.data} does not exist: give a run's folder, or one with batches of games, PGN or "
            "SGF files"
        )
    if arguments.config:
        check_file_is_readable(arguments.config)
    folder = arguments.save_dir
    if arguments.resume and folder and arguments.rank is None and arguments.nodes == 1 and not list_checkpoints(folder):
        raise ValueError(f"no checkpoint in {folder} to resume from: start without --resume")


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of this program in a folder."""
    return sorted(folder.glob(f"{CHECKPOINT_NAME.format('*')}.pt"))


if __name__ == "__main__":
    parse_before_imports(lambda _: make_parser().parse_args(strip_separator(None)), check_inputs, loading="PyTorch")

from rich.console import Console

from keima.base.reports.formats import format_duration
from keima.coach.ranks.learners import make_learner
from keima.config.commands import keima
from keima.config.load import load_section, load_settings
from keima.config.schema import Settings
from keima.data.imports.game_files import SAMPLE, find_game_files, find_games
from keima.games import load_game
from keima.learning.big_learner import BigLearner, FinishedEpoch, StepProgress, checkpoint_path, load_newest_checkpoint
from keima.learning.dataset_settings import BigExperiment, BigLearnerSettings
from keima.learning.feed import EpochFeed
from keima.learning.ranks.process_group import (
    ALONE,
    RankInfo,
    Ranks,
    SurplusRank,
    check_backend,
    join_ranks,
    unused_nccl_variables,
)
from keima.learning.ranks.save_folder import choose_folder
from keima.learning.ranks.torchrun import RankLaunch, check_machines_can_meet, count_ranks_to_start, run_ranks
from keima.learning.ranks.total_batch import group_bounds
from keima.learning.update_step import TrainingDiverged
from keima.networks.inference.evaluator import use_threads
from keima.replay.epochs import Epochs
from keima.trainers.settings import default_settings, validate_settings


def is_launcher(arguments: argparse.Namespace) -> bool:
    """Return whether this process starts ranks, instead of being one."""
    is_one = arguments.rank is not None or "RANK" in os.environ
    return arguments.launch or (not is_one and (arguments.world_size or 1) > 1)


def count_ranks_here(arguments: argparse.Namespace, asked: int | None) -> int:
    """Return how many of the requested ranks train on this machine."""
    return count_ranks_to_start(asked, arguments.device)[0]


def start_ranks(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run this program on the ranks of this machine, by torchrun; returns its exit code.

    Raises:
        ValueError: something is wrong that every rank would find, and torchrun would restart them for.
        RuntimeError: the machines have not met, or a rank has died too often.
    """
    given, rest = launch_parser().parse_known_args(words)
    asked = given.gpus or (given.world_size and max(1, given.world_size // given.nodes))
    count, fewer = count_ranks_to_start(asked, arguments.device)
    start = RankLaunch(
        ranks=count,
        nodes=given.nodes,
        node_rank=given.node_rank,
        master_addr=given.master_addr,
        master_port=given.master_port,
        restarts=given.max_restarts,
    )
    check_backend(arguments.backend, arguments.device)
    check_machines_can_meet(start)
    check_plan(arguments, world_size=count * given.nodes)
    if fewer:
        print(fewer, flush=True)
    return run_ranks(relaunch_command("big-learner"), [*rest, "--save-dir", str(arguments.save_dir)], start)


def begin_training(arguments: argparse.Namespace, ranks: Ranks) -> int:
    """Train, from the beginning or from a checkpoint; returns the exit code."""
    configure_logging(ranks)
    tree, experiment = plan_training(arguments, ranks, world_size=ranks.world_size)
    if arguments.resume and not tree:
        raise RefusedByAll(
            f"no checkpoint {candidate_checkpoints(arguments)[0]} to resume from: start without --resume"
        )
    if tree and tree["sampler"]["epoch"] >= experiment.big_learner.epochs:
        if ranks.is_main:
            print(nothing_left_text(experiment.big_learner.epochs, arguments.save_dir))
        return 0
    if ranks.is_main:
        arguments.save_dir.mkdir(parents=True, exist_ok=True)
    training = build_training(experiment, arguments, ranks)
    if tree:
        training.restore(tree)
    print_introduction(training, arguments.device, resumed=tree is not None)
    return run_training(training)


def plan_training(
    arguments: argparse.Namespace, ranks: Ranks, *, world_size: int
) -> tuple[dict[str, Any] | None, BigExperiment]:
    """Return the checkpoint to resume from, if any, and the settings of the training, the same on all ranks.

    Sets the places of games and checkpoints in ``arguments``.

    Raises:
        RefusedByAll: something is invalid.
    """
    by_default = arguments.save_dir is None
    if by_default:
        holds = lambda folder: bool(list_checkpoints(folder))  # noqa: E731
        arguments.save_dir = choose_folder(CHECKPOINTS, ranks, holds=holds, resume=arguments.resume)
        if ranks.is_main and not arguments.resume and arguments.save_dir != CHECKPOINTS:
            print(f"Earlier runs are kept: this one uses {arguments.save_dir}; --resume continues the newest")
    begun = arguments.resume or ranks.all_reduce_max(ranks.restarts) > 0
    found = [load_newest_checkpoint(ranks, path) for path in candidate_checkpoints(arguments)] if begun else []
    tree = next((tree for tree in found if tree), None)
    saved = tree["told"] if tree else {}
    experiment = BigExperiment.from_plain_values(
        make_on_rank_0(ranks, lambda: experiment_of(arguments, saved, world_size=world_size).to_plain_values())
    )
    arguments.data = find_file(arguments.data or str(experiment.big_learner.data))
    path = checkpoint_path(arguments.save_dir, network_name(experiment))
    if not begun and not by_default and ranks.all_reduce_max(int(path.exists())):
        raise RefusedByAll(f"{path} already exists: continue it with --resume, or choose another --save-dir")
    return tree, experiment


def make_on_rank_0(ranks: Ranks, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return on all ranks what ``make`` returns on rank 0; plain values.

    Raises:
        RefusedByAll: rank 0 cannot make it.
    """
    answer: dict[str, Any] = {}
    if ranks.is_main:
        try:
            answer = {"made": make()}
        except (ValueError, OSError) as error:
            answer = {"refused": str(error)}
    answer = json.loads(ranks.broadcast_text(json.dumps(answer)))
    if "refused" in answer:
        raise RefusedByAll(answer["refused"])
    return dict(answer["made"])


def experiment_of(arguments: argparse.Namespace, saved: dict[str, Any], *, world_size: int) -> BigExperiment:
    """Return the settings: flags override the config file, which overrides what a resumed training was started with.

    Args:
        saved: what the checkpoint has of the settings; empty for a new training.

    Raises:
        ValueError: something is invalid.
    """
    file = load_section(arguments.config, BigExperiment) if arguments.config else None
    names = BigLearnerSettings.model_fields
    flags = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    given = {**saved, **(file.big_learner.model_dump(exclude_unset=True) if file else {}), **flags}
    if given.get("data") is None:
        given["data"] = find_games(RUNS, file.game.name if file else arguments.game)
    arguments.data = find_file(given["data"])
    numbers = BigLearnerSettings(
        **{name: given[name] for name in names if name in given} | {"data": str(given["data"])}
    )
    check_batch_sizes(numbers, world_size)
    network = arguments.blocks or arguments.channels
    settings = saved.get("settings")
    if settings is None or file or arguments.game or network:
        settings = read_experiment(arguments).model_dump(mode="json")
    return BigExperiment.from_plain_values({**numbers.model_dump(), "settings": settings})


def nothing_left_text(epochs: int, folder: Path) -> str:
    """Return the message for a resumed training that has already finished all of its epochs."""
    finished = f"its {epochs} epochs are" if epochs > 1 else "its epoch is"
    return f"Nothing is left to do in {folder}: {finished} finished. --resume --epochs {epochs + 1} trains one more"


def check_plan(arguments: argparse.Namespace, *, world_size: int) -> None:
    """Reject what the ranks would reject. A checkpoint may be on another machine.

    Raises:
        ValueError: something is invalid.
    """
    named = arguments.data
    plan_training(arguments, ALONE, world_size=world_size)
    find_game_files(arguments.data)
    arguments.data = named


def configure_logging(ranks: Ranks) -> None:
    """Print the library's messages: warnings on rank 0, elsewhere only errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if ranks.is_main else f"rank {ranks.rank}: %(message)s"))
    logger = package_logger()
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if ranks.is_main else logging.ERROR)


def candidate_checkpoints(arguments: argparse.Namespace) -> list[Path]:
    """Return the checkpoint that the command line names, or the only one in the folder."""
    there = list_checkpoints(arguments.save_dir)
    if len(there) == 1 and not (arguments.config or arguments.blocks or arguments.channels):
        return there
    return [checkpoint_path(arguments.save_dir, network_name(read_experiment(arguments)))]


def read_experiment(arguments: argparse.Namespace) -> Settings:
    """Return the experiment that the command line names: its game, network and training.

    Raises:
        ValueError: a file cannot be read, or a number is out of range.
    """
    own = (arguments.data or Path()) / "config.yaml"
    if arguments.config:
        document = load_section(arguments.config, BigExperiment).model_dump(exclude={"big_learner"})
    elif arguments.data and own.exists():
        document = load_settings(own).model_dump()
        document["network"] |= {"type": "resnet", "module": None, "options": {}, "time_steps": None, **SIZES}
    else:
        document = default_settings(load_game(arguments.game or "chess"))
        document["network"] |= SIZES
    document["network"] |= {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    return validate_settings(document)


def learner_settings(experiment: BigExperiment, device: str) -> Settings:
    """Return the experiment with the big learner's settings in its ``training``.

    Raises:
        ValueError: a number is out of range.
    """
    big, training = experiment.big_learner, experiment.training.model_dump()
    scale = big.batch_size / USUAL_BATCH
    factor = {"none": 1.0, "linear": scale, "sqrt": math.sqrt(scale)}[big.scale_learning_rate]
    rate = training["learning_rate"] if big.learning_rate is None else big.learning_rate
    window = training["window"]
    window["min_positions"] = max(window["min_positions"], big.batch_size)
    window["max_positions"] = max(window["max_positions"], window["min_positions"])
    training |= {
        "batch_size": big.batch_size,
        "learning_rate": rate * factor,
        "learning_rate_schedule": big.schedule,
        "warmup_steps": training["warmup_steps"] if big.warmup_steps is None else big.warmup_steps,
        "mixed_precision": big.mixed_precision,
        "device": device,
    }
    # A cosine schedule needs to know its end.
    run = {**experiment.run.model_dump(), "seed": big.seed, "iterations": big.epochs}
    return validate_settings({**experiment.model_dump(exclude={"big_learner"}), "run": run, "training": training})


def network_name(settings: Settings) -> str:
    """Return the name of the network's files."""
    return CHECKPOINT_NAME.format(f"{settings.network.blocks}x{settings.network.channels}")


def check_batch_sizes(numbers: BigLearnerSettings, world_size: int) -> None:
    """Check that the batches are large enough for the ranks.

    Raises:
        ValueError: they are not; the message names the flag.
    """
    # Each rank needs a position of every group, in the smaller batches at an epoch's end, too.
    least = 2 * world_size
    for flag, value in (("--batch-size", numbers.batch_size), ("--norm-batch", numbers.norm_batch)):
        if value < least:
            raise ValueError(f"{flag} {value} is too small for {world_size} ranks: use at least {least}")


def build_training(experiment: BigExperiment, arguments: argparse.Namespace, ranks: Ranks) -> BigLearner:
    """Build the training of this rank, on its own device."""
    settings = learner_settings(experiment, arguments.device)
    game = load_game(settings.game.name, **settings.game.options)
    cores = count_usable_cores() // ranks.ranks_on_machine
    use_threads(arguments.threads or max(1, cores))
    learner = make_learner(
        game,
        settings,
        ranks=ranks,
        norm_batch=experiment.big_learner.norm_batch,
        micro_batch=arguments.micro_batch,
        shard_optimizer=arguments.shard_optimizer,
    )
    epochs = Epochs(
        game=game,
        files=(),
        batch_size=settings.training.batch_size,
        seed=settings.run.seed,
        shuffle_positions=experiment.big_learner.shuffle_positions,
        training=settings.training,
        search=settings.search,
        network=settings.network,
    )
    workers = min(4, max(1, cores - 1)) if learner.device.type == "cuda" else 0
    if arguments.num_workers is not None:
        workers = arguments.num_workers
    return BigLearner(
        learner,
        EpochFeed(epochs, rows=ranks.own_rows, num_workers=workers),
        experiment,
        data=arguments.data,
        save_dir=arguments.save_dir,
        name=network_name(settings),
        watch=progress_printer(ranks),
    )


def print_introduction(training: BigLearner, device: str, *, resumed: bool) -> None:
    """Print what is about to happen; ``device`` is the one that the command line names."""
    learner, ranks, experiment = training.learner, training.ranks, training.experiment
    if not ranks.is_main:
        return
    network, data = experiment.network, experiment.big_learner.data
    total, several = learner.batch_size, "" if ranks.is_alone else f"s by {ranks.backend}"
    shares = sorted({len(range(rank, total, ranks.world_size)) for rank in range(ranks.world_size)}, reverse=True)
    groups = len(group_bounds(total, learner.norm_batch)) - 1
    size = sum(parameter.numel() for parameter in learner.network.parameters())
    if ranks.ranks_started > ranks.world_size:
        print(count_ranks_to_start(ranks.ranks_started, device)[1])
    if ranks.restarts:
        print("A rank has died: all ranks restart, from the last checkpoint if there is one")
    if idle := unused_nccl_variables(ranks):
        print(idle)
    print(f"Games: {data}{', the sample that comes with Keima; --data names others' if data == str(SAMPLE) else ''}")
    kind = str(learner.update_step.dtype).removeprefix("torch.")
    shape = f"{network.type} {network.blocks}x{network.channels}"
    print(f"{experiment.game.name}, {shape}, {size / 1e6:.1f} million parameters, {kind}")
    print(
        f"{ranks.world_size} rank{several} on {learner.device.type}, batch {total:,}: "
        f"{' or '.join(map(str, shares))} a rank, {groups} {'groups' if groups > 1 else 'group'} for batch norm",
        flush=True,
    )
    if resumed:
        done = f"epoch {training.epoch + 1}, {training.done:,} of its positions done"
        print(f"Resuming after step {learner.step:,}, in {done}", flush=True)


def progress_printer(ranks: Ranks) -> Callable[[StepProgress | FinishedEpoch], None]:
    """Return a function that prints what happens, on rank 0."""

    def watch(what: StepProgress | FinishedEpoch) -> None:
        if ranks.is_main:
            for line in progress_lines(what, ranks.world_size):
                print_line(line)

    return watch


def print_line(line: str) -> None:
    """Print a line; training continues if the terminal is gone."""
    try:
        print(line, flush=True)
    except OSError:
        discard_output_of_lost_terminal()


def progress_lines(what: StepProgress | FinishedEpoch, world_size: int) -> list[str]:
    """Return the lines to print about a step or an epoch."""
    where = f"epoch {what.epoch}/{what.epochs}"
    if isinstance(what, FinishedEpoch):
        left_out = f", {what.num_left_out:,} games or files left out" if what.num_left_out else ""
        return [f"{where} is over: mean loss {what.loss:.4f} over {what.positions:,} positions of all ranks{left_out}"]
    report, rate = what.report, what.samples_per_second
    losses = f"loss {report.loss:.4f} (policy {report.policy_loss:.4f}, value {report.value_loss:.4f})"
    rates = f"{rate:,.1f} samples/s ({rate / world_size:,.1f} a rank)  {format_duration(what.seconds_left)} left"
    step = f"{where} {what.share_done:4.0%}  step {what.step:,}  {losses}  lr {report.learning_rate:.2e}  {rates}"
    return [*(f"left out: {text}" for text in what.left_out), step]


def run_training(training: BigLearner) -> int:
    """Train to the end, or until Ctrl-C or torchrun ends it; returns the exit code."""
    with stop_on_signals(training):
        ended = training.train()
    if training.ranks.is_main:
        print_line(f"The checkpoint is {training.path}")
        print_line(f"Play with it: {keima('play')} {training.path.with_suffix('.safetensors')}")
        if not ended:
            print_line(f"Continue: {keima(f'big-learner --save-dir {training.save_dir} --resume')}")
    return 0 if ended else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
