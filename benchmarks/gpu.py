"""Prove that everything works on this machine's GPU, and measure how fast: every path of the code once, then figures.

    python benchmarks/gpu.py                        a table, and gpu.json, in at most eight minutes; needs no network
    python benchmarks/gpu.py --device cuda:1 --json results.json
    python benchmarks/gpu.py --part figures         the figures alone; or the paths alone
    python benchmarks/gpu.py --only evaluator       the paths and figures with this word in their name
    python benchmarks/gpu.py --device cpu --quick   the same code on the CPU, shrunk: its figures say nothing of a GPU

The paths (``benchmarks/gpu_paths.py``): the evaluator with and without graphs, for both networks in three types,
against the CPU; the learner in three number types; a real lack of memory; NCCL with as many ranks as there are GPUs;
PPO; resumes on another device; worker processes; ``train_multi_gpu.py`` and ``train_parallel.py``. The figures
(``benchmarks/gpu_figures.py``): evaluations/s of the bare evaluator and of self-play, and their ratio; how busy the GPU
is; samples/s of the learner, and its share of what the GPU can compute; steps/s of PPO. The exit code is 1 if a path
has failed. What does not fit the time is left out, and named.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Parser
from keima.config.flags import number


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 ..., or cpu (default: %(default)s)")
    parser.add_argument("--only", metavar="WORD", default="", help="paths and figures with this word in their name")
    parser.add_argument("--part", choices=("all", "paths", "figures"), default="all", help="default: %(default)s")
    parser.add_argument("--minutes", type=number(above=0), default=8.0, help="at most (default: %(default)s)")
    parser.set_defaults(json=Path("gpu.json"))
    return parser.parse()


if __name__ == "__main__":
    parse()  # what follows takes seconds to import

import torch

from benchmarks.gpu_figures import FULL, QUICK, Figure, figures
from benchmarks.gpu_paths import PATHS, NotHere
from keima.base.system.machine import describe_machine
from keima.networks.inference.evaluator import pick_device

PATHS_SHARE = 0.6  # of the time, at most; the figures have the rest
SLOW_PATHS = ("test games", "ranks", "a missing GPU", "train_multi_gpu.py", "train_parallel.py")  # start programs


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a path."""

    path: str
    ok: bool
    skipped: bool
    text: str
    seconds: float


def walk(name: str, device: str) -> Outcome:
    """Run one path."""
    began, ok, skipped = time.perf_counter(), True, False
    with tempfile.TemporaryDirectory() as folder:
        try:
            text = PATHS[name](device, Path(folder))
        except NotHere as error:
            skipped, text = True, str(error)
        except Exception as error:  # the others shall run all the same
            ok, text = False, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return Outcome(path=name, ok=ok, skipped=skipped, text=text, seconds=time.perf_counter() - began)


def walked(names: list[str], device: str, deadline: float) -> Iterator[Outcome]:
    """Run these paths until the time is up."""
    for name in names:
        if time.monotonic() > deadline:
            yield Outcome(path=name, ok=True, skipped=True, text="no time was left", seconds=0.0)
        else:
            yield walk(name, device)


def described(device: str) -> dict[str, str]:
    """The machine, for the table."""
    facts = {**describe_machine(), "device": "the CPU, not a GPU"}
    where = pick_device(device)
    if where.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(where)
        facts["gpus"] = str(torch.cuda.device_count())
        facts["cuda"] = str(torch.version.cuda)
        tool = shutil.which("nvidia-smi")
        if tool:
            query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
            answer = subprocess.run(query, capture_output=True, text=True)
            facts["driver"] = answer.stdout.strip().partition("\n")[0]
    return facts


def table(facts: dict[str, str], outcomes: list[Outcome], measured: list[Figure], *, quick: bool) -> str:
    """Everything as Markdown, for docs/results/."""
    machine = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines = [f"{machine}{', shrunk: the figures compare with nothing' if quick else ''}.", ""]
    lines += ["| path | | |", "|---|---|---|"]
    for outcome in outcomes:
        mark = "skipped" if outcome.skipped else "works" if outcome.ok else "**fails**"
        lines.append(f"| {outcome.path} | {mark} | {outcome.text} |")
    lines += ["", "| figure | | | |", "|---|---|---|---|"]
    for figure in measured:
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
        lines.append(f"| {figure.what} | {value} | {figure.unit} | {figure.note} |")
    return "\n".join(lines)


def main() -> int:
    """Run the paths, measure, print the table, and write the JSON."""
    arguments = parse()
    began = time.monotonic()
    try:
        facts = described(arguments.device)
    except ValueError as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 2
    names = [name for name in PATHS if arguments.only in name and not (arguments.quick and name in SLOW_PATHS)]
    names = [] if arguments.part == "figures" else names
    seconds = 60 * arguments.minutes
    outcomes, measured = [], []
    for outcome in walked(names, arguments.device, began + PATHS_SHARE * seconds):
        outcomes.append(outcome)
        state = "skipped" if outcome.skipped else "works" if outcome.ok else "FAILS"
        print(f"{outcome.seconds:6.1f} s  {state:8} {outcome.path}: {outcome.text}", flush=True)
    effort = QUICK if arguments.quick else FULL
    for figure in figures(arguments.device, effort) if arguments.part != "paths" else ():
        if arguments.only not in figure.what:
            continue
        measured.append(figure)
        print(f"{figure.what}: {figure.value:,.3g} {figure.unit}  {figure.note}", flush=True)
        if time.monotonic() > began + seconds:
            print("No time is left for the other figures")
            break
    print(f"\n{table(facts, outcomes, measured, quick=arguments.quick)}")
    content = {
        "machine": facts,
        "quick": arguments.quick,
        "paths": [asdict(outcome) for outcome in outcomes],
        "figures": [asdict(figure) for figure in measured],
        "seconds": time.monotonic() - began,
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = [outcome.path for outcome in outcomes if not outcome.ok]
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} paths work; {arguments.json} has it all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
