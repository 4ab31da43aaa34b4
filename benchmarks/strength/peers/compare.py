"""Compare Keima with its peers at the same work: Connect Four from scratch, on the same cores, in the same minutes.

    python benchmarks/strength/peers/compare.py --minutes 11
    python benchmarks/strength/peers/compare.py --minutes 28 --peers keima pgx --settings tuned --seeds 1 2 3
    python benchmarks/strength/peers/compare.py --minutes 11 --show                            of what is finished

The peers take turns, each with all of the cores. Their minutes are wall-clock time with starting and compiling; Keima's
clock begins when PyTorch is loaded, and a last measurement of its strength comes after its time.

keima       the quickstart's settings, beyond 20 minutes those of configs/connect_four.yaml
openspiel   AlphaZero in OpenSpiel's Python, which evaluates one position at a time; *tuned* compiles that
pgx         pgx's rules and mctx's Gumbel search in the loop of pgx's example, all compiled by JAX

Two others were left out: LightZero's package (0.2.0) has no Connect Four, and alpha-zero-general is no package: to play
Connect Four, with TensorFlow, its files have to be changed.

Each peer has the settings that its authors give for it, *authors*, and for these cores a network, a batch and
simulations like Keima's, *tuned*. Keima has one set. An adapter for each peer trains and plays by the peer's own
programs, in an environment that pip makes below --folder; only Keima's imports Keima.

Then all choose moves with the same number of simulations, each by its own search: Keima's also looks three plies ahead
by the rules, and OpenSpiel's and mctx's do not. *Search error*: in how many per cent of the shipped solved positions
the chosen move throws a win or a draw away, with 95 % interval. *Policy error*: that of the network's first choice.
*Opening error*: that of the search in positions of the first 12 plies, which the shipped ones do not test; it needs
BitBully (pip install bitbully). *Score*: the share of points in games against Keima's network of the same seed, from
random openings, with both colours.

Finished trainings, answers and matches stay in --folder and are not repeated. An interrupted training begins again.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.harness import Cell, Parser, Report
from benchmarks.strength.peers.adapter import Task
from benchmarks.strength.peers.exam import Exam, make_exam
from benchmarks.strength.peers.peer_runs import PEERS, PeerRun, install
from keima.config.flags import number, whole

COLUMNS = (
    "peer",
    "settings",
    "seed",
    "minutes",
    "games",
    "evaluations/s",
    "search error, %",
    "policy error, %",
    "opening error, %",
    "score against Keima",
)


def make_runs(folder: Path, peers: Sequence[str], settings: Sequence[str], **task: Any) -> list[PeerRun]:
    """Return a run of each peer with each set of settings that it has, or with its first if it has none of them."""
    return [
        PeerRun(peer=peer, task=Task(settings=name, **task), folder=folder)
        for peer in map(PEERS.__getitem__, peers)
        for name in [name for name in settings if name in peer.settings] or peer.settings[:1]
    ]


def complete(runs: Sequence[PeerRun], exam: Exam) -> None:
    """Install the peers, train, and let all sit the exam; what is done stays as it is."""
    for run in runs:
        install(run.peer, run.folder)
    for run in runs:
        run.train()
    for run in runs:
        exam.ask(run)
        rival = find_rival(run, runs)
        if rival is not None:
            exam.play(run, rival)


def find_rival(run: PeerRun, runs: Sequence[PeerRun]) -> PeerRun | None:
    """Return Keima's run with the seed of this one; None: there is none, or this is it."""
    same = (other for other in runs if (other.peer.name, other.task.seed) == ("keima", run.task.seed))
    return None if run.peer.name == "keima" else next(same, None)


def make_row(run: PeerRun, exam: Exam) -> list[Cell]:
    """Return a run's row of the table."""
    row: list[Cell] = [run.peer.name, run.task.settings, str(run.task.seed)]
    if (trained := run.trained()) is None:
        return row + [None] * (len(COLUMNS) - len(row))
    rate = None if trained.evaluations is None else trained.evaluations / trained.seconds
    return [*row, trained.seconds / 60, trained.games, rate, *exam.rate_answers(run), exam.rate_match(run)]


def main() -> None:
    """Install, train, judge and print."""
    parser = Parser(__doc__)
    parser.option("--peers", PEERS, tuple(PEERS), help="who trains")
    parser.option("--settings", ("authors", "tuned", "quick"), ("authors", "tuned"), quick=("quick",), help="of peers")
    parser.option("--minutes", number(above=0), 11.0, quick=0.4, help="of each training")
    parser.option("--seeds", whole(0), (1,), help="a training of each with each")
    parser.option("--cores", whole(1, len(os.sched_getaffinity(0))), 2, help="of each training")
    parser.option("--simulations", whole(), 128, quick=4, help="of a move when networks are judged")
    parser.option("--positions", whole(), 2000, quick=30, help="solved positions, at most")
    parser.option("--pairs", whole(), 100, quick=2, help="of games against Keima")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="only print the table of what is finished")
    arguments = parser.parse()
    make = partial(make_runs, arguments.folder.resolve(), arguments.peers, arguments.settings)
    runs = [
        run for seed in arguments.seeds for run in make(minutes=arguments.minutes, seed=seed, cores=arguments.cores)
    ]
    exam = make_exam(positions=arguments.positions, simulations=arguments.simulations, pairs=arguments.pairs)
    with Report(arguments) as report:
        if not arguments.show:
            complete(runs, exam)
        table = report.table(f"Connect Four after {arguments.minutes:g} minutes on {arguments.cores} cores", *COLUMNS)
        for run in runs:
            table.add(*make_row(run, exam))


if __name__ == "__main__":
    main()
