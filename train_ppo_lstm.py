#!/usr/bin/env python3
"""Train a trader with a memory (PPO with an LSTM), on prices of a file or of simulated markets.

No money is at stake, or to be made.

    python train_ppo_lstm.py                                             simulated markets, in one process
    python train_ppo_lstm.py --data prices.csv --episodes 5000           the history in a file: timestamp,open,high,low,close,volume
    python train_ppo_lstm.py --resume --episodes 2000                    go on with the newest run after any end, a power cut included
    python train_ppo_lstm.py --distributed --num-gpus 4 --episodes 10000 --learning-rate-actor 1e-3 --update-interval 512 \\
        --checkpoint-interval 500 --master-port 12356                    a process for each of 4 GPUs; without any, on the cores
    python train_ppo_lstm.py --smoke                                     the same program in seconds, to see that all is well

In every bar of its market a trader may hold, buy or sell, up to --max-positions open at once. An episode is --window
bars. Every
--update-interval steps, of all worlds of all ranks together, the network learns from them. With several ranks, rank 0 trades on the
history if there is one, and the others on simulated markets; all learn one network, as one process with all their
worlds would. Where there are fewer GPUs than --num-gpus, as many ranks as there are train, or without any GPU a rank
for each core at most.

    Episode 100/1000 - Reward: 2.35, Return: $234.56, Win Rate: 65.0% (20 closed, 3 open), Steps: 256 | GPUs: 4

are means over the episodes since the last such line: the reward in per cent of the capital, the money made, the share
of closed trades that made some, how many were closed in an episode, and how many were open at its end. docs/ppo.md
explains every number.

--checkpoint-dir gets ppo_lstm_episode_N.pt (network, scales, optimizer, worlds: all that --resume needs), training_stats.json and
TensorBoard's files. Without it, each new run has a folder of its own: checkpoints_ppo, checkpoints_ppo_2 ... --resume
goes on with the newest. The lines are also in training.log, where the program was started: tail -f training.log | grep
"Episode". Ctrl-C ends in good order; a second one ends at once.

NCCL's variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE, NCCL_P2P_DISABLE) count where GPUs speak to each
other. NCCL_TIMEOUT is how many seconds ranks wait for each other, with GPUs or without. CUDA_VISIBLE_DEVICES says which
GPUs there are.
"""

if __name__ == "__main__":
    from training.common.signals import ends_at_once

    ends_at_once()  # before the imports, which take seconds

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.flags import HIGHEST_PORT, HIGHEST_SEED, number, whole
from training.common.disk_words import in_words
from training.common.signals import INTERRUPTED, interruptible, leave_lost_terminal, stop_on_signals
from training.common.start import before_imports, reports_compiling, see_file
from training.ranks.meeting import DEFAULT_PORT

log = logging.getLogger("training.ppo.trainer")

KEPT: dict[str, Any] = {  # what a run is told once, with what it is if it is told nothing
    "episodes": 1000,
    "seed": 1,
    "data": None,
    "max_gap": 6.0,
    "num_envs": 8,
    "update_interval": 128,
    "learning_rate_actor": 3e-4,
    "learning_rate_critic": 1e-3,
    "epochs": 4,
    "minibatches": 4,
    "sequence_length": 16,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "clip_values": False,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "clip_norm": 0.5,
    "target_kl": 0.03,
    "lstm_size": 128,
    "shared_lstm": False,
    "mixed_precision": False,
    "window": 256,
    "capital": 10_000.0,
    "max_positions": 5,
    "lot": 0.2,
    "fee": 0.0005,
    "slippage": 0.0002,
    "short": True,
}
SMOKE = {"episodes": 16, "num_envs": 4, "update_interval": 128, "lstm_size": 16, "window": 32, "epochs": 2}
FOLDER, LOG = Path("checkpoints_ppo"), Path("training.log")
BY_HAND = ("rank", "world_size", "local_rank", "master_addr")  # said where ranks are started one by one


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, or 130 after Ctrl-C, 2 when something is wrong that can be put right."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    errors = Console(stderr=True, highlight=False)
    try:
        if arguments.distributed:
            return start_ranks(arguments, words)
        told = {name: getattr(arguments, name) for name in BY_HAND}
        by_hand = any(value is not None for value in told.values())
        place = Place(**told, master_port=arguments.master_port) if by_hand else Place()
        with joined(
            place, device=arguments.device, room=lambda asked: room_for_ranks(asked, arguments.device)[0]
        ) as ranks:
            return begin(arguments, ranks)
    except NotNeeded:
        return 0
    except (TrainingDiverged, ValueError, OSError, RuntimeError) as error:  # a lost rank is a RuntimeError
        errors.print(f"train_ppo_lstm.py: {in_words(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def parser() -> argparse.ArgumentParser:
    """The command line; what is not said is None."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # a --distributed in other words would be passed on to the ranks
    )

    def kept(add: Any, flag: str, kind: Callable[[str], float], text: str) -> None:
        default = KEPT[flag[2:].replace("-", "_")]
        add(flag, type=kind, help=f"{text}{'' if default is None else f' (default: {default:g})'}")

    what = parser.add_argument_group("the run").add_argument
    kept(what, "--episodes", whole(), "end after so many in all, of all ranks together")
    what(
        "--checkpoint-dir",
        type=Path,
        help=f"where everything goes (default: {FOLDER}, or the first {FOLDER}_N without a run)",
    )
    what(
        "--checkpoint-interval",
        type=whole(),
        default=500,
        help="episodes between two checkpoints (default: %(default)s)",
    )
    what(
        "--resume",
        action="store_true",
        help="go on with the newest run, or that in --checkpoint-dir, told as then but for what is told now",
    )
    kept(what, "--seed", whole(0, HIGHEST_SEED), "of everything random")
    what("--log-interval", type=whole(), default=10, help="episodes between two lines (default: %(default)s)")
    what("--smoke", action="store_true", help="shrink all numbers to a run of seconds; the code that runs is the same")
    market = parser.add_argument_group("the market").add_argument
    market("--data", type=Path, help="a history of prices, .csv or .parquet (default: simulated markets)")
    kept(
        market,
        "--max-gap",
        number(least=0),
        "rows of the history may be so many times as far apart as usual; 0: any distance",
    )
    kept(market, "--window", whole(2), "bars in an episode")
    kept(market, "--capital", number(above=0), "dollars at its start")
    kept(market, "--max-positions", whole(), "open at once")
    kept(market, "--lot", number(above=0), "of the capital, that each position is worth when it is opened")
    kept(market, "--fee", number(least=0, below=1), "of what is traded")
    kept(market, "--slippage", number(least=0, below=1), "of the price, always to the worse")
    market(
        "--short", action=argparse.BooleanOptionalAction, help="whether selling may open positions (default: it may)"
    )
    how = parser.add_argument_group("how it is learned").add_argument
    kept(how, "--num-envs", whole(), "worlds that each rank steps at once")
    kept(
        how,
        "--update-interval",
        whole(),
        "steps between two updates, of all worlds of all ranks; rounded up to whole sequences",
    )
    kept(how, "--learning-rate-actor", number(above=0), "of the policy, and of a shared memory")
    kept(how, "--learning-rate-critic", number(above=0), "of what judges situations")
    kept(how, "--epochs", whole(), "times that each step is learned from")
    kept(how, "--minibatches", whole(), "in each of them")
    kept(how, "--sequence-length", whole(), "steps through which gradients go back")
    kept(how, "--gamma", number(least=0, most=1), "the discount of a step")
    kept(how, "--gae-lambda", number(least=0, most=1), "of generalized advantage estimation")
    kept(how, "--clip-coef", number(above=0), "how far a ratio may be from 1 and still count")
    how(
        "--clip-values",
        action=argparse.BooleanOptionalAction,
        help="whether values, too, are kept near what they were (default: no)",
    )
    kept(how, "--ent-coef", number(least=0), "of the policy's entropy, which keeps it trying things")
    kept(how, "--vf-coef", number(least=0), "of the critic's loss")
    kept(how, "--clip-norm", number(above=0), "gradients are scaled down to this norm")
    kept(how, "--target-kl", number(least=0), "an update ends when the policy has moved half as far again; 0: never")
    kept(how, "--lstm-size", whole(), "units of the memory")
    how(
        "--shared-lstm",
        action=argparse.BooleanOptionalAction,
        help="one memory for actor and critic (default: one for each)",
    )
    how(
        "--mixed-precision",
        action=argparse.BooleanOptionalAction,
        help="learn in 16 bits, faster where the device is made for it",
    )
    where = parser.add_argument_group("where it is learned").add_argument
    where("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one")
    where(
        "--threads",
        type=whole(),
        default=1,
        help="of each rank on the CPU; such small networks are fastest with one (default: %(default)s)",
    )
    where(
        "--distributed",
        action="store_true",
        help="start several ranks on this machine, by torchrun, which starts them anew if one dies",
    )
    where(
        "--num-gpus",
        type=whole(),
        help="so many ranks, with --distributed, but no more than there are GPUs (default: these, or two without)",
    )
    where(
        "--max-restarts",
        type=whole(0),
        default=3,
        help="how often they begin anew, from the last checkpoint (default: %(default)s)",
    )
    where("--master-addr", help="the machine of rank 0, where ranks are started by hand")
    where("--master-port", type=whole(1, HIGHEST_PORT), help=f"a free port there (default: {DEFAULT_PORT})")
    where("--world-size", type=whole(), help="ranks in all, where they are started by hand")
    where("--rank", type=whole(0), help="which of them this is, from 0")
    where("--local-rank", type=whole(0), help="which of those on this machine, and so which GPU")
    return parser


def see(arguments: argparse.Namespace) -> None:
    """See that what the command line names is there. A checkpoint may be on the machine of another rank.

    Raises:
        ValueError: it is not.
    """
    if arguments.data:
        see_file(arguments.data)
    folder = arguments.checkpoint_dir
    if arguments.resume and folder and arguments.rank is None and not any(folder.glob("*.pt")):
        raise ValueError(f"there is no checkpoint in {folder} to go on with: start without --resume")


if __name__ == "__main__":
    before_imports(lambda argv: parser().parse_args(argv), see, loading="PyTorch")

from rich.console import Console

from training.common.logs import log_also_to, room_loggers
from training.common.random import seed_stream
from training.learning.learner import TrainingDiverged
from training.networks.evaluator import pick_device, use_threads
from training.networks.network import seed_weights
from training.ppo.actor_critic import ActorCritic
from training.ppo.checkpoint import PPOCheckpoint, checkpoints, newest_checkpoint, save_checkpoint
from training.ppo.trainer import PPOSettings, PPOTrainer, world_streams
from training.ppo.worlds.trading import TradingMarkets, TradingSettings
from training.ppo.worlds.trading_data import Bars, read_history
from training.ranks.ranks import ALONE, NotNeeded, Place, Ranks, idle_variables, joined
from training.ranks.save_folder import chosen_folder
from training.ranks.torchrun import Start, room_for_ranks, run_ranks, see_that_they_can_meet
from views.live import TerminalConsole
from views.ppo import ppo_observers


def start_ranks(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run this program on several ranks, by torchrun; returns its exit code.

    Raises:
        ValueError: something is wrong that the ranks would find out, each for itself.
        RuntimeError: a rank has died too often.
    """
    for name in BY_HAND:
        if getattr(arguments, name) is not None:
            raise ValueError(f"--distributed starts all ranks of this machine: leave --{name.replace('_', '-')} out")
    count, fewer = room_for_ranks(arguments.num_gpus, arguments.device, usual=2)
    start = Start(ranks=count, master_port=arguments.master_port, restarts=arguments.max_restarts)
    see_that_they_can_meet(start)
    told, saved = prepared(arguments, ALONE)
    if saved and (reached := nothing_left(told, saved, arguments.checkpoint_dir)):
        print(reached)
        return 0
    ppo_settings(told, count)
    build_worlds(told, ALONE)
    if fewer:
        print(fewer, flush=True)
    found = ["--checkpoint-dir", str(arguments.checkpoint_dir), "--num-gpus", str(count)]  # the last word counts
    own = [*(word for word in words if word != "--distributed"), *found]
    return run_ranks(Path(__file__).resolve(), own, start)


def begin(arguments: argparse.Namespace, ranks: Ranks) -> int:
    """Train, from the beginning or from a checkpoint; returns the exit code."""
    use_threads(arguments.threads)
    if ranks.alone and ranks.started == 1 and (arguments.num_gpus or 1) > 1:
        raise ValueError(f"--num-gpus {arguments.num_gpus}: only --distributed starts several ranks")
    told, saved = prepared(arguments, ranks)
    if ranks.is_main:
        arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    console = TerminalConsole(highlight=False)
    with logged(ranks):
        if saved and (reached := nothing_left(told, saved, arguments.checkpoint_dir)):
            say(reached, console, ranks)
            return 0
        worlds = build_worlds(told, ranks, rounds_over=saved.state.counters["round"] if saved else 0)
        trainer = build_trainer(told, worlds, arguments, ranks)
        if saved:
            trainer.restore(saved.state)
        introduce(trainer, told, arguments, console, resumed_from=saved.state.counters["world_size"] if saved else None)
        if ranks.is_main:
            device = "GPUs" if trainer.network.seen_returns.device.type == "cuda" else "Ranks"
            trainer.observers = ppo_observers(
                arguments.checkpoint_dir, console, worlds, every=arguments.log_interval, device=device
            )
        return run(trainer, arguments.checkpoint_dir, console)


@contextmanager
def logged(ranks: Ranks) -> Iterator[None]:
    """Within the block, what the library warns of is shown, and on rank 0 training.log gets all that it says."""
    loggers = room_loggers()
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    handlers: list[logging.Handler] = [warnings]
    for logger in loggers:
        logger.addHandler(warnings)
        logger.setLevel(logging.INFO if ranks.is_main else logging.NOTSET)
    if ranks.is_main:
        try:
            handlers.append(logging.FileHandler(LOG, encoding="utf-8"))
            for logger in loggers:
                log_also_to(logger, handlers[-1])
        except OSError as error:
            log.warning("%s cannot be written: %s", LOG, error.strerror)
    try:
        yield
    finally:
        for handler in handlers:
            for logger in loggers:
                logger.removeHandler(handler)
            handler.close()


def say(text: str, console: Console, ranks: Ranks) -> None:
    """Show a line, and log it, on rank 0."""
    if ranks.is_main:
        log.info(text)
        console.print(text, markup=False, soft_wrap=True)


def introduce(
    trainer: PPOTrainer,
    told: dict[str, Any],
    arguments: argparse.Namespace,
    console: Console,
    *,
    resumed_from: int | None,
) -> None:
    """Say what is about to happen; ``resumed_from`` is the number of ranks that the checkpoint is of."""
    ranks, now = trainer.ranks, trainer.ranks.world_size
    if ranks.started > now:
        say(room_for_ranks(ranks.started, arguments.device)[1], console, ranks)
    if ranks.restarts:
        say("A rank has ended: all begin anew from the last checkpoint", console, ranks)
    if idle := idle_variables(ranks):
        say(idle, console, ranks)
    say(what_is_trained_on(told, arguments.checkpoint_dir, ranks), console, ranks)
    if resumed_from:
        then = (
            f", by {resumed_from} rank{'s' if resumed_from > 1 else ''} then and {now} now"
            if resumed_from != now
            else ""
        )
        say(f"Going on after {trainer.episodes_over:,} episodes{then}", console, ranks)


def prepared(arguments: argparse.Namespace, ranks: Ranks) -> tuple[dict[str, Any], PPOCheckpoint | None]:
    """All that the run is told, now or when it began, and the checkpoint to go on with; the folder is in ``arguments``
    after it.

    Raises:
        ValueError: it cannot be, or does not fit what the folder holds; the message names the flag.
    """
    default = arguments.checkpoint_dir is None
    if default:
        arguments.checkpoint_dir = chosen_folder(
            FOLDER, ranks, holds=lambda folder: bool(checkpoints(folder)), resume=arguments.resume
        )
        if ranks.is_main and not arguments.resume and arguments.checkpoint_dir != FOLDER:
            print(
                f"Earlier runs stay as they are: this one goes to {arguments.checkpoint_dir}, and --resume goes on with the newest"
            )
    folder = arguments.checkpoint_dir
    begun = arguments.resume or ranks.largest(ranks.restarts) > 0
    saved = newest_checkpoint(ranks, folder) if begun else None
    if arguments.resume and saved is None:
        raise ValueError(f"there is no checkpoint in {folder} to go on with: start without --resume")
    if not begun and not default and ranks.largest(len(checkpoints(folder))):
        raise ValueError(
            f"{folder} holds a run already: go on with it by --resume, or choose another folder by --checkpoint-dir"
        )
    told = {**KEPT, **(saved.told if saved else {})}
    told |= {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name in KEPT and value is not None
    }
    if arguments.smoke:
        told |= {
            name: min(told[name], limit)
            for name, limit in SMOKE.items()
            if name != "episodes" or arguments.episodes is None
        }
    return told, saved


def nothing_left(told: dict[str, Any], saved: PPOCheckpoint, folder: Path) -> str:
    """A sentence where the run that is gone on with has all of its episodes behind it; empty otherwise."""
    over, wanted = saved.state.counters["episodes_over"], told["episodes"]
    if over < wanted:
        return ""
    return (
        f"{folder} has {over:,} episodes behind it, which --episodes {wanted} counts too, so nothing is left to do: "
        f"--resume --episodes {over + wanted} trains {wanted:,} more"
    )


def build_trainer(
    told: dict[str, Any], worlds: TradingMarkets, arguments: argparse.Namespace, ranks: Ranks
) -> PPOTrainer:
    """The trainer of this rank."""
    seed_weights(seed_stream(told["seed"], "network"))
    network = ActorCritic(
        worlds.observation_size, worlds.num_actions, lstm_size=told["lstm_size"], shared=told["shared_lstm"]
    ).to(pick_device(arguments.device))
    return PPOTrainer(
        network,
        worlds,
        ppo_settings(told, ranks.world_size),
        seed=told["seed"],
        episodes=told["episodes"],
        keep=lambda state: save_checkpoint(arguments.checkpoint_dir, state, told),
        keep_every=arguments.checkpoint_interval,
        mixed_precision=told["mixed_precision"],
        ranks=ranks,
    )


def build_worlds(told: dict[str, Any], ranks: Ranks, *, rounds_over: int = 0) -> TradingMarkets:
    """The accounts of this rank: rank 0's on the history if there is one, the others' on simulated markets.

    Args:
        rounds_over: of the run that goes on with them; its markets should not be those of its beginning again.

    Raises:
        ValueError: the history has a fault or is too short, or a rule of trading cannot be.
        OSError: there is no such file.
    """
    rules = {name: told[name] for name in ("window", "capital", "max_positions", "lot", "fee", "slippage", "short")}
    history: Bars | None = None
    if told["data"] and ranks.is_main:
        history = read_history(Path(told["data"]), max_gap=told["max_gap"])
    seeds = world_streams(told["seed"], "market", ranks, told["num_envs"], rounds_over=rounds_over)
    return TradingMarkets(seeds, TradingSettings(**rules), history=history)


def ppo_settings(told: dict[str, Any], world_size: int) -> PPOSettings:
    """How it is learned, each rank taking its part of the update interval."""
    steps = -(-told["update_interval"] // (world_size * told["num_envs"]))  # of each world
    length = min(told["sequence_length"], steps)
    names = (
        "learning_rate_actor",
        "learning_rate_critic",
        "gamma",
        "gae_lambda",
        "clip_coef",
        "clip_values",
        "ent_coef",
        "vf_coef",
        "clip_norm",
    )
    return PPOSettings(
        **{name: told[name] for name in names},
        num_steps=-(-steps // length) * length,
        sequence_length=length,
        num_epochs=told["epochs"],
        num_minibatches=told["minibatches"],
        target_kl=told["target_kl"] or None,
    )


def what_is_trained_on(told: dict[str, Any], folder: Path, ranks: Ranks) -> str:
    """The worlds of all ranks, for people."""
    each, others = told["num_envs"], (ranks.world_size - 1) * told["num_envs"]
    if not told["data"]:
        return f"{each + others} worlds on simulated markets; {folder}/ gets everything"
    return f"{each} worlds on {told['data']}{f', {others} on simulated markets' if others else ''}; {folder}/ gets everything"


def run(trainer: PPOTrainer, folder: Path, console: Console) -> int:
    """Train to the end or to Ctrl-C, and say where everything lies."""
    try:
        with stop_on_signals(trainer):
            trainer.run()
    finally:
        for observer in trainer.observers:
            observer.close()
        leave_lost_terminal()
    ended = trainer.episodes_over >= trainer.episodes
    if trainer.ranks.is_main and (kept := checkpoints(folder)):
        console.print(
            f"{trainer.episodes_over:,} episodes, {trainer.total_steps:,} steps. The network is {kept[-1]}",
            soft_wrap=True,
        )
        if not ended:
            console.print(
                f"Go on: python train_ppo_lstm.py --checkpoint-dir {folder} --resume", markup=False, soft_wrap=True
            )
    return 0 if ended else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
