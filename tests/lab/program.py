"""``start_main.py --distributed`` in a checkout of its own, as a user types it."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

END_SECONDS = 90.0  # for a run to end


class Program:
    """The program of a checkout and its run.

    Args:
        folder: has the checkout, or will have it, and the program's output.
        environment: the program's variables.

    Attributes:
        end_seconds: how long a run may take to end after Ctrl-C.
    """

    end_seconds = END_SECONDS

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.checkout = folder / "checkout"
        self.run_dir = self.checkout / "runs" / "small"
        self.output = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = dict(environment)

    def start(self, *how: str) -> None:
        """Start the program as the guide says (or in another way), or resume the run."""
        (self.checkout / "distributed" / "status.json").unlink(missing_ok=True)  # of an earlier session
        resume = ["--resume"] if (self.run_dir / "run.db").exists() else []
        line = [sys.executable, "start_main.py", *(how or ["--distributed"]), *resume]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*line, "--run-dir", str(self.run_dir)],
                cwd=self.checkout,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Return whether the program runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill -9 the program."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> int:
        """Send Ctrl-C; return the exit code."""
        assert self.process
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(self.end_seconds)


P = TypeVar("P", bound=Program)


@contextmanager
def ended_with_the_block(program: P) -> Iterator[P]:
    """Yield a program that is killed at the end of the block, if it still runs."""
    try:
        yield program
    finally:
        if program.runs:
            program.kill()
