"""Race to a fixed strength: train, find the first model that is strong enough, and write a record.

    keima speedrun                                 lists the shipped targets
    keima speedrun tic_tac_toe                     a first try, in a minute
    keima speedrun connect_four --minutes 20       by the target's own experiment, in less time
    keima speedrun go9_gnugo --config mine.yaml    by settings of your own
    keima speedrun mine-target.yaml                a target of your own
    keima speedrun connect_four                    a second call continues a race that was interrupted

The run trains for the time that its settings or --minutes give, as its learning rate is planned for that time. Then the
target's judge measures the last model, and finds by bisection the first one that meets the target with the whole 95 %
interval. Each network has openings of its own. The clock is the time from the start of the run to the publication of
that model; measuring it does not count.

The record is record.json in the run's folder: the clock, the network, the settings, the commit, the machine, and a hash
of the ledger. Whoever has the folder checks it with keima verify. A target is a file that says what is trained and how
strong it must become; the shipped ones in keima/shipped/targets are examples for your own.

Exit code: 0 if the target was met, 1 if not, 130 after Ctrl-C, 2 after an error that you can correct.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.disk_words import error_text
from keima.base.named import find_experiment, find_target, flag_type
from keima.base.run_folder import LEDGER_NAME, RUNS, find_followed_config
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, print_status, report_compiling_of
from keima.config.flags import add_set, add_setting, given_settings, whole
from keima.paths import program_of


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``run_dir`` becomes the run's folder."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    add("target", nargs="?", metavar="TARGET", help="a shipped target, or a file (default: list the shipped ones)")
    add("--config", type=flag_type(find_experiment), help="the experiment to train (default: the target's)")
    add("--run-dir", type=Path, help="the run's folder (default: runs/speedrun-<target>)")
    add_setting(add, "--minutes", "run.minutes")
    add_setting(add, "--seed", "run.seed")
    add_set(add)
    add("--distributed", action="store_true", help="play on the config's distributed.workers, not on this machine")
    text = "processes that play when the network is judged (default: one per core)"
    add("--processes", type=whole(), default=count_usable_cores(), help=text)
    arguments = parser.parse_args(argv)
    if arguments.target and arguments.run_dir is None:
        arguments.run_dir = RUNS / f"speedrun-{Path(arguments.target).stem}"
    return arguments


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the target exists.

    Raises:
        ValueError: it does not.
    """
    if arguments.target:
        check_file_is_readable(find_target(arguments.target))


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs, loading="PyTorch")

    from keima.base.system.processes import prepare_fork_server  # only now: --help needs nothing of it

    prepare_fork_server("keima.play.arena.preload")  # it loads at the same time as this program

from rich.console import Console

from keima.base.reports.formats import format_duration
from keima.base.system.machine import describe_machine
from keima.cli.playing.progress import show_progress
from keima.cli.reports.audit import sum_core_hours
from keima.coach.forecast import is_of_game
from keima.config.load import load_settings, versions
from keima.config.own_modules import is_own
from keima.data.ledger import LedgerDamaged, LedgerMismatch, read_ledger
from keima.data.ledger_rows import model_path
from keima.games import load_game
from keima.networks.inference.evaluator import count_gpus
from keima.play.arena.slices import SliceFailed
from keima.play.network_loader import SETTINGS, load_network_from_model
from keima.play.speedrun.judge import (
    Judgement,
    find_first_that_meets,
    find_opponent,
    goal_text,
    judge_network,
    judgement_text,
)
from keima.play.speedrun.judgements import StoredJudgements
from keima.play.speedrun.record import Record, find_clock, hash_config, hash_ledger, recorded, write_record
from keima.play.speedrun.target import Target, list_targets, load_experiment, load_target

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTION = "The race is interrupted; the same command continues it, in {}."
LIMITS = ("run.minutes", "run.iterations")  # which a race may change when it continues


@handle_interrupts
@report_compiling_of
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = parse(argv)
    console = Console(highlight=False, emoji=False)
    if not arguments.target:
        for name, each in list_targets().items():
            console.print(f"{name:24} {each.title}", soft_wrap=True)
        return 0
    try:
        path = find_target(arguments.target)
        target = load_target(path)
        config = arguments.config or find_experiment(target.config)
        check_race(target, config, arguments.run_dir, {**target.settings, **given_settings(arguments)})
        if (arguments.run_dir / LEDGER_NAME).exists():
            check_continuation(arguments.run_dir, arguments.config, given_settings(arguments))
        code = train(target, config, arguments) or judge(path.stem, target, arguments, console)
        if code == INTERRUPTED:
            console.print(INTERRUPTION.format(arguments.run_dir), soft_wrap=True)
        return code
    except KeyboardInterrupt:
        console.print(INTERRUPTION.format(arguments.run_dir), soft_wrap=True)
        raise
    except (ValueError, OSError, SliceFailed, LedgerDamaged, LedgerMismatch) as error:
        print(f"{program_name()}: {error_text(error)}", file=sys.stderr)
        return 2


def check_race(target: Target, config: Path, run: Path, changes: Mapping[str, object]) -> None:
    """Check that the settings train the target's game, and that its judge can play, before anything is trained.

    Raises:
        ValueError: they do not, or it cannot.
    """
    settings, own = load_settings(config, overrides=changes), load_experiment(target)
    if (settings.game.name, settings.game.options) != (own.game.name, own.game.options):
        raise ValueError(f"{config} trains another game than the target's experiment {target.config}")
    if settings.run.minutes is None and settings.run.iterations is None:
        raise ValueError(f"{config} sets no run.minutes: give --minutes, as the learning rate is planned for the time")
    game = load_game(own.game.name, **own.game.options)
    if (run / LEDGER_NAME).exists():
        with read_ledger(run) as ledger:
            if not is_of_game(ledger, game):
                raise ValueError(f"{run} is a run of another game: name another folder with --run-dir")
    if target.match:
        find_opponent(game, target.match.opponent)
    for name, is_given in (
        ("game.smaller", bool(settings.game.smaller)),
        ("training.window.seed_games", bool(settings.training.window.seed_games)),
        ("network.type", is_own(settings.network.type) and settings.network.type != own.network.type),
    ):
        if is_given:
            raise ValueError(f"{name}: a record of such a run cannot be verified by others, so no race begins with it")


def check_continuation(run: Path, config: Path | None, given: Mapping[str, object]) -> None:
    """Check that a race that has begun would go on as it began: else its earlier games were played otherwise.

    Raises:
        ValueError: it would not.
    """
    remedy = "name another folder with --run-dir"
    if config and find_followed_config(run) not in (None, config.resolve()):
        raise ValueError(f"{run} is a race by the settings of another file than {config}: {remedy}")
    begun = load_settings(run / SETTINGS)
    for key, value in given.items():
        if key not in LIMITS and load_settings(run / SETTINGS, overrides={key: value}) != begun:
            raise ValueError(f"{run} is a race with another {key}: {remedy}")


def train(target: Target, config: Path, arguments: argparse.Namespace) -> int:
    """Train for the whole time, or continue; returns the exit code of the training."""
    run, given = arguments.run_dir, given_settings(arguments)
    words = ["--run-dir", str(run)]
    if (run / LEDGER_NAME).exists():
        words += ["--resume"]
    else:
        words += ["--config", str(config)]
        given = {"game.smaller": [], **target.settings, **given}  # nor does run.auto choose one: see check_race
    words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    words += ["--distributed"] * arguments.distributed
    if has_ended(run) and not given:
        print_status(f"{run} has ended and is judged again; --run-dir names the folder of another race")
        return 0
    training = subprocess.Popen([*program_of("keima"), "train", *words], process_group=0)
    # In a group of its own, the training has the signals from here, each once, and ends when its games are safe.
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, frame: training.send_signal(got)) for number in handled}
    try:
        return training.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def has_ended(run: Path) -> bool:
    """Return whether a run has used all of its time."""
    if not (run / LEDGER_NAME).exists() or not (run / SETTINGS).exists():
        return False
    limits = load_settings(run / SETTINGS).run
    with read_ledger(run) as ledger:
        rows = ledger.iterations()
    by_time = limits.minutes is not None and bool(rows) and rows[-1]["seconds"] >= 60 * limits.minutes
    return by_time or (limits.iterations is not None and len(rows) >= limits.iterations)


def judge_model(
    run: Path, version: int, target: Target, *, seed: int, processes: int, title: str, console: Console
) -> Judgement:
    """Measure a model of a run as a target says, and show the progress under a title meanwhile.

    It searches as the target's own experiment does in matches, whatever the settings of the run: a search that looks
    further by the rules alone would meet many targets without a network.

    Raises:
        ValueError, OSError, SliceFailed: as ``judge_network`` and ``load_network_from_model``.
    """
    playable = replace(load_network_from_model(model_path(run, version)), search=load_experiment(target).search)
    with show_progress(title, target.games, console) as show:
        return judge_network(
            target,
            playable,
            seed=seed,
            processes=processes,
            on_progress=lambda tally: show(tally.ended, tally.moves),
        )


def seed_of(model_sha256: str) -> int:
    """Return the seed of a network's openings: nobody can try several until one is lucky."""
    return int(model_sha256[:8], 16)


def judge(name: str, target: Target, arguments: argparse.Namespace, console: Console) -> int:
    """Find the first model that meets the target, and write the record; returns the exit code."""
    run = arguments.run_dir
    with read_ledger(run) as ledger:
        rows = ledger.iterations()
        models = [row for row in ledger.models() if row.accepted and model_path(run, row.version).is_file()]
    made_by = versions()
    stored, digests = StoredJudgements(run, target, made_by["keima"]), {row.version: row.sha256 for row in models}
    models = [row for row in models if rows and row.version <= rows[-1]["model_version"]]
    if not models:
        raise ValueError(f"{run} has no model yet: it needs more time")
    console.print(
        f"Target: {target.title}; {goal_text(target)}, with {target.simulations} simulations.", soft_wrap=True
    )

    def measure(version: int) -> Judgement:
        found = stored.get(digests[version])
        if found is None:
            found = judge_model(
                run,
                version,
                target,
                seed=seed_of(digests[version]),
                processes=arguments.processes,
                title=f"model {version}",
                console=console,
            )
            stored.add(digests[version], found)
        when = format_duration(find_clock(rows, version)["seconds"])
        met = "met" if found.met else "not met"
        console.print(f"  model {version}, {when}: {judgement_text(target, found)}: {met}", soft_wrap=True)
        return found

    first, judgements = find_first_that_meets([row.version for row in models], measure)
    if first is None:
        console.print("The target is not met: give more --minutes, or other settings.", soft_wrap=True)
        return 1
    clock = find_clock(rows, first)
    until = [row for row in rows if row["iteration"] <= clock["iteration"]]
    with read_ledger(run) as ledger:
        record = Record(
            name=name,
            target=target,
            seconds=clock["seconds"],
            model_version=first,
            model_sha256=digests[first],
            judgement=recorded(judgements[first], seed_of(digests[first])),
            games=clock["total_games"],
            positions=clock["total_positions"],
            core_hours=sum_core_hours(until),
            run_id=ledger.run_id,
            ledger_sha256=hash_ledger(ledger),
            config_sha256=hash_config(run),
            versions=made_by,
            machine=describe_machine() | {"gpus": str(count_gpus())},
            workers=len(clock["workers"]),
            made=f"{datetime.now(UTC):%Y-%m-%d}",
        )
    path = write_record(run, record)
    console.print(
        f"Met after {format_duration(record.seconds)}, with model {first} and {record.games:,} games. Record: {path}",
        soft_wrap=True,
    )
    console.print(f"Check it, and pack it for others: keima verify {run} --pack record.zip", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
