#!/usr/bin/env python3
"""Train a big network on files of games: alone, on all GPUs of a machine, or on several machines.

    python train_distributed.py                                                one process; the newest run's games
    python train_distributed.py --data runs/chess --epochs 2                   the newest games of a run
    python train_distributed.py --world-size 8                                 a process for each of 8 GPUs of this machine
    ./launch_distributed_training.sh --gpus 8 --batch-size 2048 --mixed-precision
    torchrun --nproc-per-node 8 train_distributed.py --data games --mixed-precision
    python train_distributed.py --data games --world-size 2 --rank 0 --master-addr 192.168.1.100        started one by one

--data is a run's folder, a folder with batches of games (*.games), PGN files of chess (*.pgn, *.pgn.zst) or SGF files of Go (*.sgf), or
such a file. Without it, the newest run under runs/ is taken that has games, or where there is none the sample games of
Keima. Every position is learned from once in an epoch, in an order that follows from --seed. Games that cannot be used
are left out and told with their place.

--batch-size is the total of all ranks, and each takes its share of it. So N ranks learn what one process learns from the same games,
up to the rounding of numbers. Batch norm takes its statistics over groups of --norm-batch positions of the total batch,
whichever ranks they are on. Where the memory is too small for a rank's share, it takes half of it at once, or less, and
adds up. Where there are fewer GPUs than ranks, as many ranks as there are GPUs train, or without any GPU a rank for
each core.

Rank 0 alone prints, and writes AlphaZeroNet_20x256_distributed.pt to --save-dir, from which --resume goes on exactly,
with any number of ranks; torchrun does so by itself when a rank has died. Without --save-dir, each training has a
folder of its own: checkpoints, checkpoints_2 ... Beside the checkpoint lies a .safetensors with the averaged weights:
scripts/play.py --model plays with them. Ctrl-C ends in good order.
"""

if __name__ == "__main__":
    from training.common.signals import ends_at_once

    ends_at_once()  # before the imports, which take seconds

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

from configs.commands import settings_file, shipped
from configs.flags import HIGHEST_PORT, as_setting, whole
from games import GAMES
from training.common.disk_words import in_words
from training.common.signals import INTERRUPTED, interruptible, leave_lost_terminal, stop_on_signals
from training.common.start import before_imports, reports_compiling, see_file
from training.ranks.meeting import DEFAULT_PORT

USUAL_BATCH = 256  # to which learning rates are scaled
PLACE = ("rank", "world_size", "local_rank", "master_addr", "master_port")
FOLDER, NAME = Path("checkpoints"), "AlphaZeroNet_{}_distributed"
RUNS = Path("runs")
SIZES = {"blocks": 20, "channels": 256}
KEPT: dict[str, Any] = {  # what a training is told once, with what it is if it is told nothing
    "data": None,  # as it was named, or found
    "epochs": 1,
    "batch_size": 1024,
    "norm_batch": 256,
    "seed": 1,
    "learning_rate": None,
    "warmup_steps": None,
    "schedule": "cosine",
    "scale_learning_rate": "none",
    "mixed_precision": False,
    "shuffle_positions": 500_000,
    "checkpoint_every": 500,
    "settings": None,  # of the experiment, as a document
}


class RefusedByAll(ValueError):
    """What every rank refuses; rank 0 says it."""


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 130 after Ctrl-C, 2 when something is wrong that can be put right."""
    words = words_of(argv)
    arguments = parser().parse_args(words)
    console = Console(stderr=True, highlight=False)
    who = "train_distributed.py"
    try:
        if arguments.check:
            see_whether_all_is_right(arguments, world_size=arguments.world_size or 1)
            return 0
        if starts_ranks(arguments):
            return start_ranks(arguments, words)
        place = Place(**{name: getattr(arguments, name) for name in PLACE})
        room = partial(ranks_here, arguments)
        with joined(place, device=arguments.device, backend=arguments.backend, room=room) as ranks:
            who += "" if ranks.is_main else f", rank {ranks.rank}"
            try:
                return begin(arguments, ranks)
            except RefusedByAll:
                if ranks.is_main:
                    raise
                return 2
    except NotNeeded:
        return 0
    except (
        ValueError,
        TrainingDiverged,
        OSError,
        RuntimeError,
    ) as error:  # a lost rank is a RuntimeError too, and so is a want of memory
        console.print(f"{who}: {in_words(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def words_of(argv: Sequence[str] | None) -> list[str]:
    """The command line, without the word by which users of the launcher set flags apart."""
    return [word for word in (sys.argv[1:] if argv is None else argv) if word != "--"]


def parser() -> argparse.ArgumentParser:
    """The command line; what is not said is None."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[starting()],
        allow_abbrev=False,  # what starts ranks, in other words, would be passed on to them
    )
    what = parser.add_argument_group("what is learned").add_argument
    what(
        "--data",
        type=Path,
        help="a run's folder, or files of games (default: the newest run that has games, or else sample games)",
    )
    what("--epochs", type=whole(), help=f"passes over the data in all (default: {KEPT['epochs']})")
    what(
        "--config",
        type=settings_file,
        help="an experiment's settings: its game, its network and its training (default: 20x256, for the run's game or chess)",
    )
    what(
        "--game",
        choices=sorted(GAMES),
        help="what is played, where neither --config nor --data says it (default: chess, or that of the games at hand)",
    )
    what(
        "--blocks",
        type=as_setting("network.blocks"),
        help=f"residual blocks of the network (default: {SIZES['blocks']})",
    )
    what(
        "--channels",
        type=as_setting("network.channels"),
        help=f"channels of its convolutions (default: {SIZES['channels']})",
    )
    what(
        "--save-dir",
        type=Path,
        help=f"where the checkpoint goes (default: {FOLDER}, or the first {FOLDER}_N without one)",
    )
    what(
        "--resume",
        action="store_true",
        help="go on with the newest training, or that in --save-dir; it remembers what this group told it",
    )
    what("--check", action="store_true", help="only see whether all of this can be, for --world-size ranks")
    what("--seed", type=as_setting("run.seed"), help=f"of weights, order and symmetries (default: {KEPT['seed']})")
    what(
        "--shuffle-positions",
        type=whole(),
        help=f"positions that are mixed with one another (default: {KEPT['shuffle_positions']:,})",
    )
    what(
        "--checkpoint-every",
        type=whole(),
        help=f"steps between checkpoints; each epoch ends with one too (default: {KEPT['checkpoint_every']})",
    )
    how = parser.add_argument_group("how it is learned").add_argument
    how(
        "--batch-size",
        type=as_setting("training.batch_size"),
        help=f"positions of a step, of all ranks together (default: {KEPT['batch_size']})",
    )
    how(
        "--norm-batch",
        type=whole(2),
        help=f"positions over which batch norm takes its statistics, at most (default: {KEPT['norm_batch']})",
    )
    how(
        "--learning-rate",
        type=as_setting("training.learning_rate"),
        help="after the warm-up, before any decay (default: the experiment's, 0.001)",
    )
    how(
        "--scale-learning-rate",
        choices=("none", "linear", "sqrt"),
        help=f"by batch size / {USUAL_BATCH}, or its root (default: none)",
    )
    how(
        "--warmup-steps",
        type=as_setting("training.warmup_steps"),
        help="over so many the learning rate rises from zero (default: the experiment's, 100)",
    )
    how("--schedule", choices=("constant", "cosine"), help="of the learning rate, over all epochs (default: cosine)")
    how(
        "--mixed-precision",
        action=argparse.BooleanOptionalAction,
        help="bfloat16 where the device has it, else float16 with a scaled loss",
    )
    where = parser.add_argument_group("where it is learned; torchrun says all of it itself").add_argument
    where("--rank", type=whole(0), help="which of --world-size this is, from 0, where ranks are started one by one")
    where("--local-rank", type=whole(0), help="which of those on this machine, and so which GPU")
    where("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: nccl between GPUs, gloo without")
    where("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one")
    where(
        "--num-workers",
        type=whole(0),
        help="processes of each rank that make batches (default: none on a CPU, up to four beside a GPU)",
    )
    where(
        "--micro-batch",
        type=whole(),
        help="positions that a rank takes at once (default: as many as fit; it is found out)",
    )
    where(
        "--shard-optimizer",
        action="store_true",
        help="each rank remembers its part of the optimizer's state, instead of all of it",
    )
    where(
        "--threads", type=as_setting("training.threads"), help="of a rank on the CPU (default: its part of the cores)"
    )
    return parser


def starting() -> argparse.ArgumentParser:
    """The part of the command line that says which ranks are started, and where they meet."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    which = parser.add_argument_group("which ranks there are; torchrun says all of it itself").add_argument
    which("--world-size", type=whole(), help="ranks in all; without --rank they are started here")
    which(
        "--launch", action="store_true", help="start the ranks of this machine, as launch_distributed_training.sh does"
    )
    which("--gpus", type=whole(), help="so many ranks, with --launch (default: the GPUs of this machine)")
    which("--nodes", type=whole(), default=1, help="machines that --launch is called on (default: %(default)s)")
    which("--node-rank", type=whole(0), default=0, help="which of them this is, from 0 (default: %(default)s)")
    which(
        "--max-restarts",
        type=whole(0),
        default=3,
        help="how often all begin anew after one has died (default: %(default)s)",
    )
    which("--master-addr", help="the machine of rank 0, or of --node-rank 0 (default: localhost)")
    which("--master-port", type=whole(1, HIGHEST_PORT), help=f"a free port there (default: {DEFAULT_PORT})")
    return parser


def see(arguments: argparse.Namespace) -> None:
    """See that what the command line names is there. A checkpoint may be on the machine of another rank.

    Raises:
        ValueError: it is not.
    """
    if arguments.data and not shipped(arguments.data).exists():
        raise ValueError(
            f"--data {arguments.data} is not there: name a run's folder, or one with batches of games, PGN or SGF files"
        )
    if arguments.config:
        see_file(arguments.config)
    folder = arguments.save_dir
    if arguments.resume and folder and arguments.rank is None and arguments.nodes == 1 and not checkpoints_in(folder):
        raise ValueError(f"there is no checkpoint in {folder} to go on with: start without --resume")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of this program there."""
    return sorted(folder.glob(f"{NAME.format('*')}.pt"))


if __name__ == "__main__":
    before_imports(lambda _: parser().parse_args(words_of(None)), see, loading="PyTorch")

from rich.console import Console

from configs.load import load_settings
from configs.schema import Settings
from distributed.local.wiring import default_settings, validated
from games import Game, load_game
from training.data.game_files import SAMPLE, find_files, games_at_hand
from training.learning.big_learner import BigLearner, Epoch, Step, checkpoint_path, newest_checkpoint
from training.learning.feed import EpochFeed
from training.learning.learner import Learner, TrainingDiverged
from training.networks.evaluator import use_threads
from training.ranks.ranks import ALONE, NotNeeded, Place, Ranks, check_backend, idle_variables, joined
from training.ranks.save_folder import chosen_folder
from training.ranks.torchrun import Start, room_for_ranks, run_ranks, see_that_they_can_meet
from training.ranks.total_batch import group_bounds
from training.replay.epochs import Epochs
from training.run.run import make_learner, window_options
from views.charts import duration


def starts_ranks(arguments: argparse.Namespace) -> bool:
    """Whether this process starts ranks, rather than being one."""
    is_one = arguments.rank is not None or "RANK" in os.environ
    return arguments.launch or (not is_one and (arguments.world_size or 1) > 1)


def ranks_here(arguments: argparse.Namespace, asked: int | None) -> int:
    """How many of the ranks that are asked for train on this machine."""
    return room_for_ranks(asked, arguments.device)[0]


def start_ranks(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run this program on the ranks of this machine, by torchrun; returns its exit code.

    Raises:
        ValueError: something is wrong that the ranks would find out, and torchrun would start them again and again.
        RuntimeError: the machines have not met, or a rank has died too often.
    """
    told, rest = starting().parse_known_args(words)
    count, fewer = room_for_ranks(
        told.gpus or (told.world_size and max(1, told.world_size // told.nodes)), arguments.device
    )
    start = Start(
        ranks=count,
        nodes=told.nodes,
        node_rank=told.node_rank,
        master_addr=told.master_addr,
        master_port=told.master_port,
        restarts=told.max_restarts,
    )
    check_backend(arguments.backend, arguments.device)
    see_that_they_can_meet(start)
    see_whether_all_is_right(arguments, world_size=count * told.nodes)
    if fewer:
        print(fewer, flush=True)
    return run_ranks(Path(__file__).resolve(), [*rest, "--save-dir", str(arguments.save_dir)], start)


def begin(arguments: argparse.Namespace, ranks: Ranks) -> int:
    """Train, from the beginning or from a checkpoint; returns the exit code."""
    listen(ranks)
    tree, told, settings = planned(arguments, ranks, world_size=ranks.world_size)
    if arguments.resume and not tree:
        raise RefusedByAll(f"there is no checkpoint {candidates(arguments)[0]} to go on with: start without --resume")
    if tree and tree["sampler"]["epoch"] >= told["epochs"]:
        if ranks.is_main:
            print(nothing_left(told, arguments.save_dir))
        return 0
    if ranks.is_main:
        arguments.save_dir.mkdir(parents=True, exist_ok=True)
    game = load_game(settings.game.name, **settings.game.options)
    learner = build_learner(game, settings, told, arguments, ranks)
    training = build_training(game, learner, settings, told, arguments)
    if tree:
        training.restore(tree)
    introduce(training, ranks, settings, resumed=tree is not None)
    return run(training)


def planned(
    arguments: argparse.Namespace, ranks: Ranks, *, world_size: int
) -> tuple[dict[str, Any] | None, dict[str, Any], Settings]:
    """The checkpoint to go on with, if there is one to be, what the training has been told, and its settings, the same
    on all ranks.

    After it ``arguments`` says where the games and the checkpoints are.

    Raises:
        RefusedByAll: something cannot be.
    """
    by_default = arguments.save_dir is None
    if by_default:
        holds = lambda folder: bool(checkpoints_in(folder))  # noqa: E731
        arguments.save_dir = chosen_folder(FOLDER, ranks, holds=holds, resume=arguments.resume)
        if ranks.is_main and not arguments.resume and arguments.save_dir != FOLDER:
            print(
                f"Earlier trainings stay as they are: this one goes to {arguments.save_dir}, and --resume goes on with the newest"
            )
    begun = arguments.resume or ranks.largest(ranks.restarts) > 0
    found = [newest_checkpoint(ranks, path) for path in candidates(arguments)] if begun else []
    tree = next((tree for tree in found if tree), None)
    told = as_rank_0(ranks, lambda: told_in_all(arguments, tree, world_size))
    arguments.data = arguments.data or shipped(told["data"])
    settings = with_numbers(told, arguments.device)
    path = checkpoint_path(arguments.save_dir, name_of(settings))
    if not begun and not by_default and ranks.largest(int(path.exists())):
        raise RefusedByAll(
            f"{path} is there already: go on with it by --resume, or choose another folder by --save-dir"
        )
    return tree, told, settings


def as_rank_0(ranks: Ranks, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 makes, on all ranks; plain values.

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


def told_in_all(arguments: argparse.Namespace, tree: dict[str, Any] | None, world_size: int) -> dict[str, Any]:
    """What the training is told, now or when it began.

    Raises:
        ValueError: something cannot be.
    """
    told = {**KEPT, **(tree["told"] if tree else {})}
    told |= {name: getattr(arguments, name) for name in KEPT if getattr(arguments, name, None) is not None}
    if told["data"] is None:
        told["data"] = games_at_hand(RUNS, game_of(arguments))
    told["data"] = str(told["data"])
    arguments.data = shipped(told["data"])
    check(told, world_size)
    if told["settings"] is None or arguments.config or arguments.game or arguments.blocks or arguments.channels:
        told["settings"] = experiment(arguments).model_dump(mode="json")
    return told


def game_of(arguments: argparse.Namespace) -> str | None:
    """The game that the command line names."""
    return load_settings(arguments.config).game.name if arguments.config else arguments.game


def nothing_left(told: dict[str, Any], folder: Path) -> str:
    """What to say of a training that is gone on with and has all of its epochs behind it."""
    epochs = told["epochs"]
    over = f"its {epochs} epochs are" if epochs > 1 else "its epoch is"
    return f"Nothing is left to do in {folder}, for {over} over: --resume --epochs {epochs + 1} trains one more"


def see_whether_all_is_right(arguments: argparse.Namespace, *, world_size: int) -> None:
    """Refuse what the ranks would refuse. A checkpoint may be on another machine.

    Raises:
        ValueError: something cannot be.
    """
    named = arguments.data
    planned(arguments, ALONE, world_size=world_size)
    find_files(arguments.data)
    arguments.data = named


def listen(ranks: Ranks) -> None:
    """Show what the library has to say: all of it on rank 0, elsewhere only what is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s" if ranks.is_main else f"rank {ranks.rank}: %(message)s"))
    logger = logging.getLogger("training")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if ranks.is_main else logging.ERROR)


def candidates(arguments: argparse.Namespace) -> list[Path]:
    """The checkpoint that the command line means, or the only one in the folder."""
    there = checkpoints_in(arguments.save_dir)
    if len(there) == 1 and not (arguments.config or arguments.blocks or arguments.channels):
        return there
    return [checkpoint_path(arguments.save_dir, name_of(experiment(arguments)))]


def experiment(arguments: argparse.Namespace) -> Settings:
    """What the command line says of game, network and training.

    Raises:
        ValueError: a file cannot be read, or a number is out of range.
    """
    own = (arguments.data or Path()) / "config.yaml"
    if arguments.config:
        document = load_settings(arguments.config).model_dump()
    elif arguments.data and own.exists():
        document = load_settings(own).model_dump()
        document["network"] |= {"type": "resnet", "time_steps": None, **SIZES}
    else:
        document = default_settings(load_game(arguments.game or "chess"))
        document["network"] |= SIZES
    document["network"] |= {name: getattr(arguments, name) for name in SIZES if getattr(arguments, name) is not None}
    return validated(document)


def with_numbers(told: dict[str, Any], device: str) -> Settings:
    """The settings of the training, of its experiment and the other numbers that it is told.

    Raises:
        ValueError: a number is out of range.
    """
    settings = validated(told["settings"])
    training = settings.training.model_dump()
    scale = told["batch_size"] / USUAL_BATCH
    factor = {"none": 1.0, "linear": scale, "sqrt": math.sqrt(scale)}[told["scale_learning_rate"]]
    rate = told["learning_rate"] if told["learning_rate"] is not None else training["learning_rate"]
    warmup = told["warmup_steps"] if told["warmup_steps"] is not None else training["warmup_steps"]
    training |= {
        "batch_size": told["batch_size"],
        "learning_rate": rate * factor,
        "learning_rate_schedule": told["schedule"],
        "warmup_steps": warmup,
        "mixed_precision": bool(told["mixed_precision"]),
        "device": device,
    }
    training["window"] |= {"min_positions": max(training["window"]["min_positions"], told["batch_size"])}
    training["window"] |= {
        "max_positions": max(training["window"]["max_positions"], training["window"]["min_positions"])
    }
    run = {
        **settings.run.model_dump(),
        "seed": told["seed"],
        "iterations": told["epochs"],
    }  # a cosine wants to know where it ends
    return validated({**settings.model_dump(), "run": run, "training": training})


def name_of(settings: Settings) -> str:
    """What the network's files are called."""
    return NAME.format(f"{settings.network.blocks}x{settings.network.channels}")


def check(told: dict[str, Any], world_size: int) -> None:
    """See that the numbers fit each other.

    Raises:
        ValueError: they do not; the message names the flag.
    """
    least = (
        2 * world_size
    )  # so that each rank has a position of every group, in the smaller batches at an epoch's end too
    for name in ("batch_size", "norm_batch"):
        if told[name] < least:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} {told[name]} is too small for {world_size} ranks: take at least {least}")


def build_learner(
    game: Game, settings: Settings, told: dict[str, Any], arguments: argparse.Namespace, ranks: Ranks
) -> Learner:
    """The learner of this rank, on its own device."""
    cores = len(os.sched_getaffinity(0))
    use_threads(arguments.threads or max(1, cores // ranks.neighbours))
    sharing = {
        "norm_batch": told["norm_batch"],
        "micro_batch": arguments.micro_batch,
        "shard_optimizer": arguments.shard_optimizer,
    }
    return make_learner(game, settings, ranks=ranks, **sharing)


def build_training(
    game: Game, learner: Learner, settings: Settings, told: dict[str, Any], arguments: argparse.Namespace
) -> BigLearner:
    """The training of this rank."""
    ranks = learner.ranks
    epochs = Epochs(
        game=game,
        files=(),
        batch_size=told["batch_size"],
        seed=told["seed"],
        shuffle_positions=told["shuffle_positions"],
        symmetries=settings.training.symmetries,
        window=window_options(game, settings),
    )
    spare = max(1, len(os.sched_getaffinity(0)) // ranks.neighbours - 1)
    workers = (
        arguments.num_workers
        if arguments.num_workers is not None
        else (min(4, spare) if learner.device.type == "cuda" else 0)
    )
    return BigLearner(
        learner,
        EpochFeed(epochs, rows=ranks.rows, num_workers=workers),
        data=arguments.data,
        save_dir=arguments.save_dir,
        name=name_of(settings),
        epochs=told["epochs"],
        checkpoint_every=told["checkpoint_every"],
        told=told,
        network=settings.network.model_dump(),
        watch=teller(ranks),
    )


def introduce(training: BigLearner, ranks: Ranks, settings: Settings, *, resumed: bool) -> None:
    """Say what is about to happen."""
    if not ranks.is_main:
        return
    learner, network = training.learner, settings.network
    total, several = learner.batch_size, "" if ranks.alone else f"s by {ranks.backend}"
    shares = sorted({len(range(rank, total, ranks.world_size)) for rank in range(ranks.world_size)}, reverse=True)
    groups = len(group_bounds(total, learner.norm_batch)) - 1
    size = sum(parameter.numel() for parameter in learner.network.parameters())
    if ranks.started > ranks.world_size:
        print(room_for_ranks(ranks.started, settings.training.device)[1])
    if ranks.restarts:
        print("A rank has ended: all begin anew, from the last checkpoint if there is one")
    if idle := idle_variables(ranks):
        print(idle)
    sample = ", the sample that comes with Keima; --data names others" if training.told["data"] == str(SAMPLE) else ""
    print(f"Games: {training.told['data']}{sample}")
    kind = str(learner.update_step.dtype).removeprefix("torch.")
    print(
        f"{settings.game.name}, {network.type} {network.blocks}x{network.channels}, {size / 1e6:.1f} million parameters, {kind}"
    )
    print(
        f"{ranks.world_size} rank{several} on {learner.device.type}, batch {total:,}: {' or '.join(map(str, shares))} a rank, "
        f"{groups} {'groups' if groups > 1 else 'group'} for batch norm",
        flush=True,
    )
    if resumed:
        print(
            f"Going on after step {learner.step:,}, in epoch {training.epoch + 1}, after {training.done:,} of its positions",
            flush=True,
        )


def teller(ranks: Ranks) -> Any:
    """Who prints what happens, on rank 0."""

    def tell(what: Step | Epoch) -> None:
        if ranks.is_main:
            for line in lines_of(what, ranks.world_size):
                say(line)

    return tell


def say(line: str) -> None:
    """Print a line; where nobody can read it any more, training goes on without."""
    try:
        print(line, flush=True)
    except OSError:
        leave_lost_terminal()


def lines_of(what: Step | Epoch, world_size: int) -> list[str]:
    """What there is to say of a step or an epoch."""
    where = f"epoch {what.epoch}/{what.epochs}"
    if isinstance(what, Epoch):
        left_out = f", {what.bad:,} games or files left out" if what.bad else ""
        return [f"{where} is over: mean loss {what.loss:.4f} over {what.positions:,} positions of all ranks{left_out}"]
    report, rate = what.report, what.samples_per_second
    losses = f"loss {report.loss:.4f} (policy {report.policy_loss:.4f}, value {report.value_loss:.4f})"
    rates = f"{rate:,.1f} samples/s ({rate / world_size:,.1f} a rank)  {duration(what.seconds_left)} left"
    step = f"{where} {what.over:4.0%}  step {what.step:,}  {losses}  lr {report.learning_rate:.2e}  {rates}"
    return [*(f"left out: {text}" for text in what.bad), step]


def run(training: BigLearner) -> int:
    """Train to the end, or until Ctrl-C or torchrun ends it."""
    with stop_on_signals(training):
        ended = training.train()
    if training.ranks.is_main:
        say(f"The checkpoint is {training.path}")
        say(f"Play with it: python scripts/play.py --model {training.path.with_suffix('.safetensors')}")
        if not ended:
            say(f"Go on: python train_distributed.py --save-dir {training.save_dir} --resume")
    return 0 if ended else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
