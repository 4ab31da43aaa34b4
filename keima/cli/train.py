#!/usr/bin/env python3
"""Train a network by self-play: the program of the main node.

    python start_main.py --config configs/quickstart.yaml          Connect Four on this machine, in about ten minutes
    python start_main.py --config configs/go9.yaml                 9x9 Go
    python start_main.py --distributed                             on the machines in configs/config.yaml, over SSH
    python start_main.py --run-dir runs/go9 --resume               continue a run, even after a power cut
    python start_main.py --config configs/go9.yaml --smoke         smoke test: the same run, shrunk to seconds

A run writes everything to one folder, runs/<name>. Ctrl-C ends it cleanly: the workers hand over their finished games.
A second Ctrl-C ends it at once; no finished game is lost then either.

Distributed runs: watch -n 1 cat distributed/status.txt; tail -f logs/distributed_training.log; see docs/operations.md.
"""

if __name__ == "__main__":
    from keima.base.system.signals import ends_at_once

    ends_at_once()  # before the imports, which take seconds

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from keima.base.system.signals import INTERRUPTED, interruptible
from keima.base.system.start import before_imports, reports_compiling, see_inputs
from keima.config.commands import connector
from keima.config.flags import as_setting
from keima.paths import find_file, workspace

QUICKSTART = Path("configs/quickstart.yaml")
CLUSTER = Path("configs/config.yaml")
FOLLOWED = "followed_config"  # in a run's folder: the path of the config file that it was started with or followed last
LOG = workspace() / "logs" / "distributed_training.log"
LOG_BYTES = 10 * 2**20


@interruptible
@reports_compiling
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    arguments = parse(argv)
    return exit_code("start_main.py", lambda: begin(arguments))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"those of the resumed run, else {QUICKSTART}, or {CLUSTER} with --distributed"
    parser.add_argument("--config", type=find_file, help=f"the experiment's settings (default: {default})")
    parser.add_argument(
        "--distributed", action="store_true", help="play on the config's distributed.workers instead of this machine"
    )
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="with --distributed: take over workers of another Coach; its games are set aside",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run where it ended")
    parser.add_argument("--run-dir", type=Path, help="the run's folder (default: runs/<name in the config>)")
    parser.add_argument(
        "--iterations",
        type=as_setting("run.iterations"),
        help="end after this many iterations in total; overrides the config",
    )
    parser.add_argument(
        "--minutes",
        type=as_setting("run.minutes"),
        help="end after this many minutes in total; overrides the config",
    )
    parser.add_argument("--seed", type=as_setting("run.seed"), help="seed of all random numbers; overrides the config")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="smoke test: the same run, shrunk to seconds, and to two iterations unless --iterations is given",
    )
    arguments = parser.parse_args(argv)
    if arguments.takeover and not arguments.distributed:
        parser.error("--takeover goes with --distributed")
    return arguments


def see(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists.

    Raises:
        ValueError: it does not.
    """
    see_inputs(arguments.run_dir if arguments.resume else None, config_of(arguments))


def config_of(arguments: argparse.Namespace) -> Path:
    """Return the file with the settings."""
    resumed = resumed_config(arguments)
    default = find_file(CLUSTER if arguments.distributed else QUICKSTART)
    return arguments.config or (resumed if resumed and resumed.exists() else default)


def resumed_config(arguments: argparse.Namespace) -> Path | None:
    """Return where the resumed run keeps its own settings."""
    return arguments.run_dir / "config.yaml" if arguments.resume and arguments.run_dir else None


if __name__ == "__main__":
    if not before_imports(parse, see, loading="PyTorch").distributed:
        from keima.base.system.processes import prepare  # only now: --help needs nothing of it

        prepare("keima.cluster.local.preloaded")  # they load it at the same time as this one does

from rich.console import Console

from keima.base.files import write_atomically
from keima.base.formats import game_title
from keima.base.reports import IterationReport
from keima.base.run_lock import RunLock
from keima.base.system.logs import log_also_to, log_to
from keima.cluster.control.cluster_client import open_cluster_client
from keima.cluster.local.learner_ranks import learner_ranks
from keima.cluster.local.processes import spread_processes
from keima.cluster.ray import require_ray
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.ranks.following import follow_rank_zero
from keima.coach.session import configured_game, event_logger, exit_code, make_run_folder, session
from keima.config.load import ConfigError, load_settings, shrink, with_begun_modules
from keima.config.schema import Settings
from keima.games import Game
from keima.learning.ranks.process_group import Place, Ranks, joined
from keima.report import make_observers
from keima.report.files.trackers import require_trackers
from keima.report.strength import strength_sentences
from keima.report.terminal.next_steps import next_steps


def begin(arguments: argparse.Namespace) -> int:
    """Start or resume the run."""
    path, settings = read_settings(arguments)
    with joined(Place(), device=settings.training.device) as ranks:  # the ranks of torchrun, if there are any
        if ranks.is_main:
            return lead(arguments, path, settings, ranks)
        follow_rank_zero(ranks)
        return 0


def lead(arguments: argparse.Namespace, path: Path, settings: Settings, ranks: Ranks) -> int:
    """Run as rank 0 of the learner; after torchrun has restarted the ranks, resume."""
    run_dir = arguments.run_dir or Path(settings.run.directory) / settings.run.name
    restarted = ranks.restarts > 0 and (run_dir / "run.db").exists()
    resume = arguments.resume or restarted
    settings, changed = with_begun_modules(settings, run_dir) if resume else (settings, [])
    require_trackers(settings.run.trackers)
    if settings.distributed.enabled and settings.distributed.ray:
        require_ray()
    configured_game(settings, path)  # before anything is written
    make_run_folder(run_dir, resume=resume)
    log_to(logging.FileHandler(run_dir / "coach.log", encoding="utf-8"))
    with RunLock(run_dir), learner_ranks(settings, run_dir, present=ranks) as ranks:
        return train(run_dir, settings, path, ranks, takeover=arguments.takeover, changed=changed)


def read_settings(arguments: argparse.Namespace) -> tuple[Path, Settings]:
    """Return the config file, and its settings with the command line's changes."""
    given = {"run.iterations": arguments.iterations, "run.minutes": arguments.minutes, "run.seed": arguments.seed}
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    path, resumed = config_of(arguments), resumed_config(arguments)
    if arguments.distributed and path != resumed:
        overrides["distributed.enabled"] = True
    settings = load_settings(path, overrides=overrides)
    if path == resumed and (arguments.distributed or settings.distributed.enabled):
        path, settings = with_present_workers(path, settings)
    return path, shrink(
        settings, **{key: given[f"run.{key}"] for key in ("iterations", "minutes")}
    ) if arguments.smoke else settings


def with_present_workers(path: Path, settings: Settings) -> tuple[Path, Settings]:
    """Return the settings of a resumed run with the cluster section as its file has it now, and that file.

    The file is the one that the run was started with or has followed since, or the run's own copy if it is gone. A run
    that was on this machine alone takes the workers of ``CLUSTER`` if its own file lists none.

    Raises:
        ConfigError: the file is invalid, or lists no workers.
    """
    mark = path.parent / FOLLOWED
    followed = Path(mark.read_text(encoding="utf-8")) if mark.exists() else path
    files = [followed if followed.exists() else path]
    if not settings.distributed.enabled and find_file(CLUSTER).exists():
        files.append(find_file(CLUSTER))
    for file in files:
        present = load_settings(file).distributed
        if present.has_machines:
            return file, settings.model_copy(update={"distributed": present.model_copy(update={"enabled": True})})
    remedy = f"list them there, or with {connector(files[-1])} --add HOST USER; or continue without --distributed"
    raise ConfigError(files[-1], [f"distributed.workers: none are listed; {remedy}"])


def train(
    run_dir: Path,
    settings: Settings,
    config: Path,
    ranks: Ranks,
    *,
    takeover: bool = False,
    changed: Sequence[str] = (),
) -> int:
    """Run the Coach to its end, and print the summary; ``changed`` says what differs from the run's beginning."""
    if config != run_dir / "config.yaml":  # which is the run's own copy
        write_atomically(run_dir / FOLLOWED, str(config.resolve()).encode())
    observers = make_observers(
        run_dir,
        name=settings.run.name,
        game=game_title(settings.game.name, settings.game.options),
        trackers=settings.run.trackers,
    )
    log_event = event_logger(observers)
    for sentence in changed:
        log_event(sentence)

    def make_backend(game: Game, run_id: str) -> SelfPlayBackend:
        if settings.distributed.enabled:
            log_for_all()
            return open_cluster_client(
                run_dir / "workers",
                config=config,
                run_dir=run_dir,
                game=game,
                settings=settings,
                run_id=run_id,
                takeover=takeover,
                log_event=log_event,
            )
        return spread_processes(run_dir / "workers", game=game, settings=settings, run_id=run_id, log_event=log_event)

    with session(run_dir, settings, make_backend=make_backend, observers=observers, ranks=ranks) as coach:
        report = coach.run()
    print_summary(run_dir, report, stopped=coach.stop_requested, distributed=settings.distributed.enabled)
    return INTERRUPTED if coach.stop_requested else 0


def log_for_all() -> None:
    """Write the run's log also where users of a cluster expect it."""
    LOG.parent.mkdir(exist_ok=True)
    handler = RotatingFileHandler(LOG, maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8")
    log_also_to(logging.getLogger(), handler)


def print_summary(run_dir: Path, report: IterationReport | None, *, stopped: bool, distributed: bool) -> None:
    """Print the network's strength, where the run's files are, and what to do next."""
    console = Console(highlight=False)
    width = shutil.get_terminal_size().columns
    console.rule(style="dim") if width > 40 else None
    if report and report.evaluation:
        simulations = report.evaluation.num_simulations
        for sentence in strength_sentences(report.evaluation):
            console.print(f"{sentence} ({simulations} simulations a move).", soft_wrap=True)
    resume = f"start_main.py {'--distributed ' if distributed else ''}--run-dir {run_dir} --resume" if stopped else ""
    for line in next_steps(run_dir, play=True, resume=resume):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
