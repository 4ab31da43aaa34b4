#!/usr/bin/env python3
"""Train a trading policy with a memory (PPO with an LSTM) on a file of prices or on simulated markets.

This is a simulation: no real money is involved, and a simulated profit is no promise of a real one.

    keima ppo                                    simulated markets, one process
    keima ppo --data prices.csv --episodes 5000  prices: timestamp,open,high,low,close,volume
    keima ppo --config ppo_lstm                  settings from a file; flags override it
    keima ppo --resume --episodes 2000           continue the newest run, even after a power cut
    keima ppo --distributed --num-gpus 4 --episodes 10000 --update-interval 512 --master-port 12356
                                                                   one process per GPU; without GPUs, on the cores
    keima ppo --smoke                            smoke test: the same program, shrunk to seconds

In each bar, a trader holds, buys or sells, with at most --max-positions open at once. An episode lasts --window bars.
The network learns every --update-interval steps, counted over all environments of all ranks. With several ranks, rank 0
trades on the history if there is one, and the others on simulated markets. All ranks train one network, as one process
with all their environments would. If there are fewer GPUs than --num-gpus, one rank per GPU trains; without GPUs, at
most one per core.

    Episode 100/1000 - Reward: 2.35, Return: $234.56, Win Rate: 65.0% (20 closed, 3 open), Steps: 256 | GPUs: 4

Each such line shows means over the episodes since the line before it: the reward in percent of the capital, the profit,
the share of closed trades that made a profit, the trades closed per episode, and the positions still open at its end.
docs/ppo.md explains every number.

--checkpoint-dir is the output folder: ppo_lstm_episode_N.pt (network, scales, optimizer and environments: all that
--resume needs), training_stats.json and TensorBoard files. Without it, each new run gets its own folder:
checkpoints_ppo, checkpoints_ppo_2 ... The lines also go to training.log in the current folder: tail -f training.log |
grep "Episode". Ctrl-C saves a checkpoint and exits; a second Ctrl-C exits at once.

NCCL's variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, NCCL_P2P_DISABLE) apply where GPUs communicate.
NCCL_TIMEOUT is the time in seconds that ranks wait for each other, with or without GPUs. CUDA_VISIBLE_DEVICES selects
the GPUs.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before the imports, which take seconds

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from keima.base.disk_words import error_text
from keima.base.named import find_experiment, flag_type
from keima.base.system.command_line import CommandLine, program_name, relaunch_command
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, discard_output_of_lost_terminal, handle_interrupts, stop_on_signals
from keima.base.system.start import check_file_is_readable, parse_before_imports, report_compiling_of
from keima.config.flags import HIGHEST_PORT, add_section, whole
from keima.learning.ranks.meeting import DEFAULT_PORT

log = logging.getLogger("keima.ppo.trainer")

SETTINGS = "keima.ppo.settings.TraderSettings"  # by name: importing it would delay --help
SMOKE = {"episodes": 16, "num_envs": 4, "update_interval": 128, "lstm_size": 16, "window": 32, "epochs": 2}
CHECKPOINTS, LOG = Path("checkpoints_ppo"), Path("training.log")
PLACE_FLAGS = ("rank", "world_size", "local_rank", "master_addr")  # given where ranks are started one by one


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = make_parser().parse_args(words)
    errors = Console(stderr=True, highlight=False)
    try:
        if arguments.distributed:
            return start_ranks(arguments, words)
        given = {name: getattr(arguments, name) for name in PLACE_FLAGS}
        by_hand = any(value is not None for value in given.values())
        place = RankInfo(**given, master_port=arguments.master_port) if by_hand else RankInfo()
        with join_ranks(
            place, device=arguments.device, room=lambda asked: count_ranks_to_start(asked, arguments.device)[0]
        ) as ranks:
            return begin_training(arguments, ranks)
    except SurplusRank:
        return 0
    except (TrainingDiverged, ValueError, OSError, RuntimeError) as error:  # a lost rank is a RuntimeError
        errors.print(f"{program_name()}: {error_text(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; a flag that is not given is None."""
    parser = CommandLine(
        __doc__,
        allow_abbrev=False,  # an abbreviated --distributed would be passed on to the ranks
    )
    add_settings = partial(add_section, settings=SETTINGS)

    run = parser.add_argument_group("the run").add_argument
    run("--config", type=flag_type(find_experiment), help="settings; flags override them")
    add_settings(run, "run")
    run(
        "--checkpoint-dir",
        type=Path,
        help=f"output folder (default: {CHECKPOINTS}, or the first unused {CHECKPOINTS}_N)",
    )
    run("--checkpoint-interval", type=whole(), default=500, help="episodes between checkpoints (default: %(default)s)")
    run(
        "--resume",
        action="store_true",
        help="continue the newest run, or the one in --checkpoint-dir, with its settings",
    )
    run("--log-interval", type=whole(), default=10, help="episodes between output lines (default: %(default)s)")
    run("--smoke", action="store_true", help="smoke test: the same run, shrunk to seconds")

    market = parser.add_argument_group("the market").add_argument
    add_settings(market, "history")
    add_settings(market, "trading")

    learning = parser.add_argument_group("learning").add_argument
    add_settings(learning, "training")
    add_settings(learning, "network")

    where = parser.add_argument_group("devices and ranks").add_argument
    where("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    where("--threads", type=whole(), default=1, help="CPU threads per rank (default: %(default)s, fastest here)")
    where("--distributed", action="store_true", help="start several ranks on this machine, by torchrun")
    where("--num-gpus", type=whole(), help="ranks, at most one per GPU (default: all GPUs, or 2 ranks without GPUs)")
    where(
        "--max-restarts", type=whole(0), default=3, help="restarts from the last checkpoint if a rank dies (default: 3)"
    )
    where("--master-addr", help="machine of rank 0, if you start ranks by hand")
    where("--master-port", type=whole(1, HIGHEST_PORT), help=f"a free port there (default: {DEFAULT_PORT})")
    where("--world-size", type=whole(), help="number of ranks, if you start them by hand")
    where("--rank", type=whole(0), help="number of this rank, from 0")
    where("--local-rank", type=whole(0), help="number of this rank on its machine, which selects the GPU")
    return parser


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists. A checkpoint may be on the machine of another rank.

    Raises:
        ValueError: it does not.
    """
    for path in (arguments.config, arguments.data):
        if path:
            check_file_is_readable(path)
    folder = arguments.checkpoint_dir
    if arguments.resume and folder and arguments.rank is None and not any(folder.glob("*.pt")):
        raise ValueError(f"no checkpoint in {folder} to resume from: start without --resume")


if __name__ == "__main__":
    parse_before_imports(lambda argv: make_parser().parse_args(argv), check_inputs, loading="PyTorch")

from rich.console import Console

from keima.base.random import seed_stream
from keima.base.system.logs import add_log_handler, package_logger
from keima.config.commands import keima
from keima.config.load import load_section
from keima.learning.ranks.process_group import ALONE, RankInfo, Ranks, SurplusRank, join_ranks, unused_nccl_variables
from keima.learning.ranks.save_folder import choose_folder
from keima.learning.ranks.torchrun import RankLaunch, check_machines_can_meet, count_ranks_to_start, run_ranks
from keima.learning.update_step import TrainingDiverged
from keima.networks.inference.evaluator import pick_device, use_threads
from keima.networks.network import seed_weights
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.checkpoint import PPOCheckpoint, list_checkpoints, load_newest_ppo_checkpoint, save_checkpoint
from keima.ppo.observers import ppo_observers
from keima.ppo.settings import TraderSettings
from keima.ppo.trainer import PPOTrainer, world_streams
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.trading_data import Bars, read_history
from keima.report.terminal.live import TerminalConsole


def start_ranks(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run this program on several ranks, by torchrun; returns its exit code.

    Raises:
        ValueError: something is wrong that every rank would find for itself.
        RuntimeError: a rank has died too often.
    """
    for name in PLACE_FLAGS:
        if getattr(arguments, name) is not None:
            raise ValueError(f"--distributed starts all ranks of this machine: leave --{name.replace('_', '-')} out")
    count, fewer = count_ranks_to_start(arguments.num_gpus, arguments.device, usual=2)
    start = RankLaunch(ranks=count, master_port=arguments.master_port, restarts=arguments.max_restarts)
    check_machines_can_meet(start)
    settings, saved = prepare_run(arguments, ALONE)
    if saved and (reached := nothing_left_text(settings, saved, arguments.checkpoint_dir)):
        print(reached)
        return 0
    build_worlds(settings, ALONE)
    if fewer:
        print(fewer, flush=True)
    found = ["--checkpoint-dir", str(arguments.checkpoint_dir), "--num-gpus", str(count)]  # the last one counts
    own = [*(word for word in words if word != "--distributed"), *found]
    return run_ranks(relaunch_command("ppo"), own, start)


def begin_training(arguments: argparse.Namespace, ranks: Ranks) -> int:
    """Train, from the beginning or from a checkpoint; returns the exit code."""
    use_threads(arguments.threads)
    if ranks.is_alone and ranks.ranks_started == 1 and (arguments.num_gpus or 1) > 1:
        raise ValueError(f"--num-gpus {arguments.num_gpus}: only --distributed starts several ranks")
    settings, saved = prepare_run(arguments, ranks)
    if ranks.is_main:
        arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    console = TerminalConsole(highlight=False)
    with log_to_folder(ranks):
        if saved and (reached := nothing_left_text(settings, saved, arguments.checkpoint_dir)):
            print_and_log(reached, console, ranks)
            return 0
        rounds_over, threads = saved.state.counters["round"] if saved else 0, count_world_threads(arguments, ranks)
        worlds = build_worlds(settings, ranks, rounds_over=rounds_over, threads=threads)
        trainer = build_trainer(settings, worlds, arguments, ranks)
        if saved:
            trainer.restore(saved.state)
        resumed_from = saved.state.counters["world_size"] if saved else None
        print_introduction(trainer, settings, arguments, console, resumed_from=resumed_from)
        if ranks.is_main:
            device = "GPUs" if trainer.network.seen_returns.device.type == "cuda" else "Ranks"
            trainer.observers = ppo_observers(
                arguments.checkpoint_dir, console, worlds, every=arguments.log_interval, device=device
            )
        return run_training(trainer, arguments.checkpoint_dir, console)


@contextmanager
def log_to_folder(ranks: Ranks) -> Iterator[None]:
    """Within the block, print the library's warnings, and on rank 0 write all its messages to training.log."""
    logger = package_logger()
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [warnings]
    logger.addHandler(warnings)
    logger.setLevel(logging.INFO if ranks.is_main else logging.NOTSET)
    if ranks.is_main:
        try:
            handlers.append(logging.FileHandler(LOG, encoding="utf-8"))
            add_log_handler(logger, handlers[-1])
        except OSError as error:
            log.warning("cannot write %s: %s", LOG, error.strerror)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def print_and_log(text: str, console: Console, ranks: Ranks) -> None:
    """Print and log a line, on rank 0."""
    if ranks.is_main:
        log.info(text)
        console.print(text, markup=False, soft_wrap=True)


def print_introduction(
    trainer: PPOTrainer,
    settings: TraderSettings,
    arguments: argparse.Namespace,
    console: Console,
    *,
    resumed_from: int | None,
) -> None:
    """Print what is about to happen; ``resumed_from`` is the number of ranks that wrote the checkpoint."""
    ranks, now = trainer.ranks, trainer.ranks.world_size
    if ranks.ranks_started > now:
        print_and_log(count_ranks_to_start(ranks.ranks_started, arguments.device)[1], console, ranks)
    if ranks.restarts:
        print_and_log("A rank has died: all ranks restart from the last checkpoint", console, ranks)
    if idle := unused_nccl_variables(ranks):
        print_and_log(idle, console, ranks)
    print_and_log(environments_text(settings, arguments.checkpoint_dir, ranks), console, ranks)
    if resumed_from:
        ranks_then = f"{resumed_from} rank{'s' if resumed_from > 1 else ''}"
        then = f", by {ranks_then} then and {now} now" if resumed_from != now else ""
        print_and_log(f"Resuming after {trainer.episodes_over:,} episodes{then}", console, ranks)


def prepare_run(arguments: argparse.Namespace, ranks: Ranks) -> tuple[TraderSettings, PPOCheckpoint | None]:
    """Return the settings of the run, and the checkpoint to resume from; set ``arguments.checkpoint_dir``.

    Raises:
        ValueError: the settings are invalid, or do not fit what the folder holds; the message names the flag.
    """
    default = arguments.checkpoint_dir is None
    if default:
        arguments.checkpoint_dir = choose_folder(
            CHECKPOINTS, ranks, holds=lambda folder: bool(list_checkpoints(folder)), resume=arguments.resume
        )
        if ranks.is_main and not arguments.resume and arguments.checkpoint_dir != CHECKPOINTS:
            print(f"Earlier runs are kept: this one uses {arguments.checkpoint_dir}; --resume continues the newest")
    folder = arguments.checkpoint_dir
    begun = arguments.resume or ranks.all_reduce_max(ranks.restarts) > 0
    saved = load_newest_ppo_checkpoint(ranks, folder) if begun else None
    if arguments.resume and saved is None:
        raise ValueError(f"no checkpoint in {folder} to resume from: start without --resume")
    if not begun and not default and ranks.all_reduce_max(len(list_checkpoints(folder))):
        raise ValueError(f"{folder} already holds a run: continue it with --resume, or choose another --checkpoint-dir")
    return settings_of(arguments, saved), saved


def settings_of(arguments: argparse.Namespace, saved: PPOCheckpoint | None) -> TraderSettings:
    """Return the settings: flags override the config file, which overrides those that a resumed run was started with.

    Raises:
        ConfigError: the config file is wrong.
    """
    flags = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if value is not None
    }
    file = load_section(arguments.config, TraderSettings).to_flat(only_given=True) if arguments.config else {}
    values = {**(saved.settings if saved else {}), **file, **flags}
    if arguments.smoke:
        usual = {**TraderSettings().to_flat(), **values}
        values |= {
            name: min(usual[name], limit)
            for name, limit in SMOKE.items()
            if name != "episodes" or arguments.episodes is None
        }
    return TraderSettings.from_flat(values)


def nothing_left_text(settings: TraderSettings, saved: PPOCheckpoint, folder: Path) -> str:
    """Return a sentence if the resumed run has already finished all of its episodes; otherwise an empty text."""
    over, wanted = saved.state.counters["episodes_over"], settings.run.episodes
    if over < wanted:
        return ""
    return (
        f"{folder} has finished {over:,} episodes, and --episodes {wanted} includes them, so nothing is left to do: "
        f"--resume --episodes {over + wanted} trains {wanted:,} more"
    )


def build_trainer(
    settings: TraderSettings, worlds: TradingMarkets, arguments: argparse.Namespace, ranks: Ranks
) -> PPOTrainer:
    """Build the trainer of this rank."""
    seed = settings.run.seed
    seed_weights(seed_stream(seed, "network"))
    network = ActorCritic(
        worlds.observation_size,
        worlds.num_actions,
        lstm_size=settings.network.lstm_size,
        shared=settings.network.shared_lstm,
    ).to(pick_device(arguments.device))
    return PPOTrainer(
        network,
        worlds,
        settings.training.for_ranks(ranks.world_size),
        seed=seed,
        episodes=settings.run.episodes,
        keep=lambda state: save_checkpoint(arguments.checkpoint_dir, state, settings.to_flat()),
        keep_every=arguments.checkpoint_interval,
        mixed_precision=settings.training.mixed_precision,
        ranks=ranks,
    )


def count_world_threads(arguments: argparse.Namespace, ranks: Ranks) -> int:
    """Return how many threads step this rank's worlds: with a GPU its share of the cores, which are otherwise idle."""
    if pick_device(arguments.device).type == "cpu":
        return int(arguments.threads)
    return max(1, count_usable_cores() // ranks.ranks_on_machine)


def build_worlds(settings: TraderSettings, ranks: Ranks, *, rounds_over: int = 0, threads: int = 1) -> TradingMarkets:
    """Build the accounts of this rank: rank 0's on the history if there is one, the others' on simulated markets.

    Args:
        rounds_over: rounds of the resumed run; its markets must differ from those that it started with.
        threads: step the worlds.

    Raises:
        ValueError: the history has a fault or is too short.
        OSError: there is no such file.
    """
    history: Bars | None = None
    if settings.history.data and ranks.is_main:
        history = read_history(Path(settings.history.data), max_gap=settings.history.max_gap)
    seeds = world_streams(settings.run.seed, "market", ranks, settings.training.num_envs, rounds_over=rounds_over)
    return TradingMarkets(seeds, settings.trading, history=history, threads=threads)


def environments_text(settings: TraderSettings, folder: Path, ranks: Ranks) -> str:
    """Describe the environments of all ranks."""
    each, data = settings.training.num_envs, settings.history.data
    others = (ranks.world_size - 1) * each
    if not data:
        return f"{each + others} environments on simulated markets; output in {folder}/"
    return f"{each} environments on {data}{f', {others} on simulated markets' if others else ''}; output in {folder}/"


def run_training(trainer: PPOTrainer, folder: Path, console: Console) -> int:
    """Train to the end or to Ctrl-C, and print where the output is."""
    try:
        with stop_on_signals(trainer):
            trainer.run()
    finally:
        for observer in trainer.observers:
            observer.close()
        discard_output_of_lost_terminal()
    ended = trainer.episodes_over >= trainer.episodes
    if trainer.ranks.is_main and (kept := list_checkpoints(folder)):
        done = f"{trainer.episodes_over:,} episodes, {trainer.total_steps:,} steps. The network is {kept[-1]}"
        console.print(done, soft_wrap=True)
        if not ended:
            resume = f"Continue: {keima(f'ppo --checkpoint-dir {folder} --resume')}"
            console.print(resume, markup=False, soft_wrap=True)
    return 0 if ended else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
