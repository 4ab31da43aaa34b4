"""Inject faults into a running cluster, and check that no game is lost, none counts twice, and everything heals.

    python tests/chaos/run.py --hosts 4 --minutes 10 --seed 1
    python tests/chaos/run.py --hosts 4 --faults 1000 --seed 1 --report report.json

The hosts are network namespaces of this machine, with their own real sshds and disks, and the main node has its own
disk. Everything is removed afterwards, also after Ctrl-C. It needs Linux and root. The seed decides which faults are
drawn; when they strike depends on the machine's speed. Only Python's wall clocks jump, and monotonic clocks do not:
neither can be changed for one host alone. Exit code: 0 if all went well, 1 if not (each problem is named), 2 if this
machine cannot have hosts.
"""

import argparse
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from keima.base.system.signals import INTERRUPTED
from tests.chaos.campaign import Campaign
from tests.chaos.faults import KINDS
from tests.chaos.report import Report
from tests.chaos.scene import running_scene
from tests.lab.hosts import why_not

FOREVER = 10**9
START_SECONDS = 900.0  # on a machine that is busy with other work


def campaign(
    *,
    hosts: int,
    seed: int,
    most_faults: int,
    seconds: float,
    log_event: Console,
    kinds: Sequence[str] = (),
    keep: Path | None = None,
) -> Report:
    """Run a campaign and report it; ``keep``: a folder for the logs and the ledger, if anything went wrong."""
    report = Report(seed=seed, hosts=hosts)
    with running_scene(hosts, random.Random(seed)) as scene:
        scene.driver.start()
        scene.driver.wait_until_all_play(hosts, seconds=START_SECONDS)
        made = Campaign(
            scene,
            report,
            most_faults=most_faults,
            seconds=seconds,
            log_event=lambda text: log_event.print(text, highlight=False, markup=False, soft_wrap=True),
            kinds=kinds,
        )
        try:
            made.run()
        finally:
            report.problems = scene.problems
            if keep and (report.problems or sys.exc_info()[0]):
                shutil.copytree(scene.driver.checkout, keep, ignore=shutil.ignore_patterns("*.npz"), dirs_exist_ok=True)
                shutil.copy(scene.driver.output, keep / "output")
                for host in scene.hosts:
                    shutil.copytree(host.home / "keima" / "logs", keep / "logs" / host.name, dirs_exist_ok=True)
    return report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="how many machines play (default: 4)")
    parser.add_argument("--faults", type=int, default=FOREVER, help="end after so many faults")
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help="end after so many minutes (default: 10, or as long as --faults takes)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what befalls whom (default: 1)")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=sorted(KINDS), metavar="FAULT", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep every fault and all figures there, as JSON")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="when something is wrong, keep the run and all logs there"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    arguments, console = parse(argv), Console(soft_wrap=True)
    if reason := why_not():
        console.print(f"run.py: {reason}", markup=False)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    minutes = arguments.minutes or (10.0 if arguments.faults == FOREVER else FOREVER)
    began = time.monotonic()
    try:
        report = campaign(
            hosts=arguments.hosts,
            seed=arguments.seed,
            most_faults=arguments.faults,
            seconds=60.0 * minutes,
            log_event=console,
            kinds=arguments.only,
            keep=arguments.keep,
        )
    except KeyboardInterrupt:
        console.print(f"Ended after {time.monotonic() - began:.0f} s; nothing of it is left.")
        return INTERRUPTED
    report.show(console)
    if arguments.report:
        report.write(arguments.report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
