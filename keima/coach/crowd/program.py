"""The checker in a process of its own (keima/coach/crowd/checker.py).

    python -m keima.coach.crowd.program RUN SHARE STARTER

``CheckerProcess`` starts it with the share of the games to check and its own process id. It runs at the priority of
workers, which would starve it at a lower one, in a session of its own, so that Ctrl-C in the terminal leaves its end to
the Coach, and exits with the Coach.
"""

import logging
import signal
import sqlite3
import sys
import time
from pathlib import Path

from keima.base.system.logs import set_log_handler
from keima.base.system.priority import WORKER_PRIORITY, begin_session
from keima.base.system.processes import die_with_starter
from keima.coach.crowd.checker import Checker, Terms
from keima.coach.crowd.verdicts import make_folder
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.games import load_game
from keima.networks.inference.evaluator import use_threads

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
RETRY_SECONDS = 10.0  # after the disk or the ledger has failed
LOG = "checker.log"  # in the folder of the crowd's files


def check_run(run_dir: Path, share: float) -> None:
    """Check the games of a run until the process is ended.

    Raises:
        OSError, ValueError, sqlite3.Error: the run or its settings cannot be read.
    """
    settings = load_settings(run_dir / "config.yaml")
    with read_ledger(run_dir) as ledger:
        game = load_game(ledger.game, **ledger.options)
        terms = Terms(seed=settings.run.seed, search=settings.search)
        checker = Checker(ledger, game, terms, share=share)
        while True:
            try:
                busy, seconds = checker.step(), IDLE_SECONDS
            except (OSError, sqlite3.Error) as error:
                log.warning("checked again in %.0f s: %s", RETRY_SECONDS, error)
                busy, seconds = False, RETRY_SECONDS
            if not busy:
                time.sleep(seconds)


def main() -> None:
    """Check the run that the command line names."""
    run_dir, share, starter = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    die_with_starter(signal.SIGTERM, starter=starter)
    begin_session(WORKER_PRIORITY)
    set_log_handler(logging.FileHandler(make_folder(run_dir) / LOG, encoding="utf-8"))
    use_threads(1)
    try:
        check_run(run_dir, share)
    except Exception:
        log.exception("the checks end")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
