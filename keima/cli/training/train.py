#!/usr/bin/env python3
"""Train a network by self-play: the program of the main node.

    keima train quickstart                     Connect Four on this machine, in about ten minutes
    keima train go9                            9x9 Go
    keima train my.yaml                        the experiment in a file
    keima train my_game.py --hours 2           a game of your own; Keima chooses the settings
    keima train othello.py --crowd             also on machines that others join with, by a link
    keima train --distributed                  on the machines in configs/config.yaml, over SSH
    keima train go9 --set search.num_simulations=200 --set network.blocks=6
    keima train go9 --smoke                    smoke test: the same run, shrunk to seconds
    keima resume runs/go9                      continue a run, even after a power cut
    keima resume runs/go9 --distributed        continue it on the machines in its config

A run writes everything to one folder, runs/<name>. Ctrl-C ends it cleanly: the workers hand over their finished games.
A second Ctrl-C ends it at once; no finished game is lost then either. The settings of a game of your own are chosen
when the run begins, by the game, this machine and the time; those in my_game.yaml stay.

Distributed runs: watch -n 1 cat distributed/status.txt; tail -f logs/distributed_training.log; see docs/operations.md.
`python start_main.py` takes the same arguments as `keima train`.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()  # before the imports, which take seconds

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keima.base.named import experiment_names, find_experiment, flag_type, run_names, word_completer
from keima.base.run_folder import LEDGER_NAME, find_followed_config, list_run_names, resolve_run_folder
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_file_is_readable, check_paths_exist, parse_before_imports, report_compiling_of
from keima.config.commands import cluster, keima
from keima.config.flags import add_set, add_setting, given_settings, number
from keima.config.own_modules import keep_module
from keima.paths import find_file

RESUME = "keima resume"
RESUMING = """Continue a run where it ended, even after a power cut.

    keima resume runs/go9                      with its settings
    keima resume go9 --hours 4                 until it has run for four hours in total
    keima resume go9 --set training.learning_rate=0.001
    keima resume go9 --distributed             on the machines in its config

A run writes everything to one folder, runs/<name>. Ctrl-C ends it cleanly.
"""
QUICKSTART = Path("configs/quickstart.yaml")
CLUSTER = Path("configs/config.yaml")


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 after an error that the user can correct."""
    arguments = parse(argv)
    return exit_code(lambda: begin_training(arguments))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``what`` becomes ``config``, ``game`` or ``run_dir``."""
    parser = CommandLine(RESUMING if program_name() == RESUME else __doc__)
    add = parser.add_argument
    resumes = parser.prog == RESUME
    what = "the run to continue" if resumes else "an experiment; a game of your own; or a run to resume"
    word = add("what", nargs="?", metavar="RUN" if resumes else "CONFIG|GAME.py|RUN", help=what)
    word.completer = word_completer(run_names if resumes else experiment_names)  # type: ignore[attr-defined]
    default = f"those of the resumed run, else {QUICKSTART}, or {CLUSTER} with --distributed"
    add("--config", type=flag_type(find_experiment), help=f"the experiment's settings (default: {default})")
    add("--distributed", action="store_true", help="play on the config's distributed.workers, not on this machine")
    takeover = "with --distributed: take over workers of another Coach; its games are set aside"
    crowd = "let machines join by a link, from anywhere, beside the config's and this one (docs/crowd.md); or no more"
    add("--crowd", action=argparse.BooleanOptionalAction, help=crowd)
    add("--takeover", action="store_true", help=takeover)
    add("--resume", action="store_true", help=argparse.SUPPRESS if resumes else "continue the run")
    add("--run-dir", type=Path, help="the run's folder (default: runs/<name in the config>)")
    add_setting(add, "--iterations", "run.iterations")
    add_setting(add, "--minutes", "run.minutes")
    add(
        "--hours",
        type=number(above=0),
        help="the same limit in hours; with run.auto, settings are chosen for it",
    )
    add_setting(add, "--seed", "run.seed")
    add_set(add)
    smoke = "smoke test: the same run, shrunk to seconds, and to two iterations unless --iterations is given"
    add("--smoke", action="store_true", help=smoke)
    arguments = parser.parse_args(argv)
    arguments.distributed |= arguments.crowd is True
    if arguments.takeover and not arguments.distributed:
        parser.error("--takeover goes with --distributed")
    if arguments.hours and getattr(arguments, "run.minutes"):
        parser.error("--hours and --minutes both limit the run: give one of them")
    if arguments.hours:
        setattr(arguments, "run.minutes", round(arguments.hours * 60, 6))
    arguments.game = None
    if resumes and not (arguments.what or arguments.config or arguments.run_dir):
        parser.error(f"name the run to continue; runs here: {list_run_names()}")
    if arguments.what and arguments.resume and Path(arguments.what).suffix not in (".py", ".yaml", ".yml"):
        arguments.run_dir = arguments.run_dir or resolve_run_folder(Path(arguments.what))
    elif arguments.what and arguments.config:
        parser.error(f"{arguments.what} and --config both name an experiment: give one of them")
    elif arguments.what and arguments.what.endswith(".py"):
        arguments.game = Path(arguments.what)
        arguments.config = arguments.game.with_suffix(".yaml")
    elif arguments.what:
        try:
            arguments.config = find_experiment(arguments.what)
        except ValueError as error:
            parser.error(str(error))
    return arguments


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that what the command line names exists.

    Raises:
        ValueError: it does not.
    """
    if arguments.game:
        check_file_is_readable(arguments.game)
        keep_module(arguments.game)
        if not arguments.config.exists():
            return
    if program_name() == RESUME and arguments.run_dir and not (arguments.run_dir / LEDGER_NAME).exists():
        raise ValueError(f"there is no run in {arguments.run_dir} to continue; runs here: {list_run_names()}")
    check_paths_exist(arguments.run_dir if arguments.resume else None, config_path(arguments))


def config_path(arguments: argparse.Namespace) -> Path:
    """Return the file with the settings."""
    resumed = resumed_config_path(arguments)
    default = find_file(CLUSTER if arguments.distributed and not arguments.crowd else QUICKSTART)
    return arguments.config or (resumed if resumed and resumed.exists() else default)


def resumed_config_path(arguments: argparse.Namespace) -> Path | None:
    """Return where the resumed run keeps its own settings."""
    return arguments.run_dir / "config.yaml" if arguments.resume and arguments.run_dir else None


if __name__ == "__main__":
    if not parse_before_imports(parse, check_inputs, loading="PyTorch").distributed:
        from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it
        from keima.self_play.compile_ahead import start_compiling

        prepare_fork_server("keima.cluster.local.preload")  # they load it at the same time as this one does
        start_compiling("self_play")

import yaml
from rich.console import Console

from keima.base.system.start import print_status
from keima.cli.new_game import write_config
from keima.cluster.players import find_players_elsewhere
from keima.coach.proposal import load_run_settings
from keima.coach.ranks.following import follow_rank_zero
from keima.coach.session import exit_code
from keima.config.load import ConfigError, load_settings, shrink
from keima.config.schema import Settings
from keima.evaluation.match_worker import describe_match_search
from keima.learning.ranks.process_group import RankInfo, Ranks, count_ranks, join_ranks
from keima.report.strength import strength_sentences
from keima.report.terminal.next_steps import next_steps
from keima.trainers.run import RunEnd, cluster_backend_maker, local_backend_maker, train_run


def begin_training(arguments: argparse.Namespace) -> int:
    """Start or resume the run."""
    is_new = bool(arguments.game) and not arguments.config.exists()
    if is_new:
        write_config(arguments.game, arguments.config)
        print_status(f"wrote {arguments.config}: settings that you give there stay, the others are chosen now")
    try:
        path, settings = read_settings(arguments)
    except BaseException as error:
        if is_new:
            arguments.config.unlink()
        if not isinstance(error, KeyboardInterrupt):
            raise
        print_status("stopped before the run began; nothing of it was written")
        return INTERRUPTED
    with join_ranks(RankInfo(), device=settings.training.device) as ranks:  # the ranks of torchrun, if there are any
        if ranks.is_main:
            return lead_training(arguments, path, settings, ranks)
        follow_rank_zero(ranks)
        return 0


def lead_training(arguments: argparse.Namespace, path: Path, settings: Settings, ranks: Ranks) -> int:
    """Run as rank 0 of the learner; after torchrun has restarted the ranks, resume."""
    run_dir = arguments.run_dir or settings.run.folder
    restarted = ranks.restarts > 0 and (run_dir / "run.db").exists()
    distributed = settings.distributed.enabled
    backend = cluster_backend_maker(config=path, takeover=arguments.takeover) if distributed else local_backend_maker()
    end = train_run(
        run_dir,
        settings,
        make_backend=backend,
        config=path,
        resume=arguments.resume or restarted,
        present=ranks,
    )
    print_summary(run_dir, end, flag=how_to_continue(settings))
    return INTERRUPTED if end.stopped else 0


def read_settings(arguments: argparse.Namespace) -> tuple[Path, Settings]:
    """Return the config file, and its settings with the command line's changes."""
    overrides = given_settings(arguments)
    path, resumed = config_path(arguments), resumed_config_path(arguments)
    if arguments.distributed and path != resumed:
        overrides["distributed.enabled"] = True
    if arguments.crowd:
        overrides |= crowd_override(path, overrides)
    chooses = {"run.auto": False} if arguments.smoke else {}
    settings = load_run_settings(
        path,
        overrides | chooses,
        run_dir=arguments.run_dir,
        say=print_status,
        resume=arguments.resume,
        several_boards=count_ranks() == 1,
        find_players=lambda settings: find_players_elsewhere(path, settings.distributed, say=print_status),
    )
    if path == resumed and (arguments.distributed or settings.distributed.enabled):
        path, settings = use_current_workers(path, settings)
    if arguments.crowd is False:
        settings = close_door(settings)
    if arguments.smoke:
        bounds = {key: overrides.get(f"run.{key}") for key in ("iterations", "minutes")}
        settings = shrink(settings, **bounds)
    return path, settings


def crowd_override(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the override that lets machines join, unless the file or another override has their settings."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    distributed = document.get("distributed") if isinstance(document, dict) else None
    given = isinstance(distributed, dict) and distributed.get("crowd") is not None
    return {} if given or any(key.startswith("distributed.crowd") for key in overrides) else {"distributed.crowd": {}}


def close_door(settings: Settings) -> Settings:
    """Return the settings of a run that machines cannot join any more; without others, this machine plays alone."""
    left = settings.distributed.model_copy(update={"crowd": None})
    left = left.model_copy(update={"enabled": left.enabled and left.has_machines})
    return settings.model_copy(update={"distributed": left})


def use_current_workers(path: Path, settings: Settings) -> tuple[Path, Settings]:
    """Return the settings of a resumed run with the cluster section as its file has it now, and that file.

    The file is the one that the run was started with or has followed since, or the run's own copy if it is gone. A run
    that was on this machine alone takes the workers of ``CLUSTER`` if its own file lists none.

    Raises:
        ConfigError: the file is invalid, or lists no workers.
    """
    followed = find_followed_config(path.parent)
    files = [followed if followed and followed.exists() else path]
    if not settings.distributed.enabled and find_file(CLUSTER).exists():
        files.append(find_file(CLUSTER))
    for file in files:
        present = load_settings(file).distributed
        if present.crowd is None and settings.distributed.crowd is not None:  # which --crowd has given
            present = present.model_copy(update={"crowd": settings.distributed.crowd})
        if present.has_machines:
            return file, settings.model_copy(update={"distributed": present.model_copy(update={"enabled": True})})
    remedy = f"list them there, or with {cluster('add HOST USER', files[-1])}; or continue without --distributed"
    raise ConfigError(files[-1], [f"distributed.workers: none are listed; {remedy}"])


def how_to_continue(settings: Settings) -> str:
    """Return the flag with which a run is resumed on the machines that it had."""
    if not settings.distributed.enabled:
        return ""
    return " --crowd" if settings.distributed.crowd else " --distributed"


def print_summary(run_dir: Path, end: RunEnd, *, flag: str) -> None:
    """Print the network's strength, where the run's files are, and what to do next; ``flag`` is to resume it."""
    console = Console(highlight=False)
    width = shutil.get_terminal_size().columns
    console.rule(style="dim") if width > 40 else None
    if end.report and end.report.evaluation:
        sentences = strength_sentences(end.report.evaluation)
        if sentences:
            search = describe_match_search(end.coach.settings.search, end.report.evaluation.num_simulations)
            sentences.append(f"Measured with {search}")
        for sentence in sentences:
            console.print(f"{sentence}.", soft_wrap=True)
    if not end.report and not end.stopped:
        console.print(
            "The run had reached its limit before: --hours, --minutes or --iterations give it more, in total."
        )
    resume = keima(f"resume {run_dir}{flag}") if end.stopped else ""
    for line in next_steps(end.coach.run_dir, play=True, rate=end.coach.game.num_players <= 2, resume=resume):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
