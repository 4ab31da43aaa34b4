"""The real program on the nodes of a real Ray cluster: a checkout that runs ``start_main.py --distributed``."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from keima.cli.reports.audit import Audit, audit
from keima.cluster.agent.process import find_running
from keima.data.ledger import read_ledger
from keima.paths import CACHE
from tests.cluster.ray.nodes import Nodes
from tests.lab.driver import ACTIVE, CUSTOM_WORKER, WORKER_CLASS
from tests.lab.program import Program, ended_with_the_block
from tests.small_run import small_settings
from tests.sources import copy_checkout

WAIT_SECONDS = 300.0  # on a machine that is also busy with other work


class RayRun(Program):
    """A checkout with its config, and the program that runs in it.

    Args:
        folder: for the checkout.
        nodes: the cluster.
        changes: changes of the config, by section.
        environment: variables of the program, in addition to this process's own.
    """

    end_seconds = 120.0

    def __init__(
        self,
        folder: Path,
        nodes: Nodes,
        *,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = nodes
        super().__init__(folder, {**os.environ, "KEIMA_CACHE": str(CACHE), **(environment or {})})
        copy_checkout(self.checkout)
        (self.checkout / "custom_worker.py").write_text(CUSTOM_WORKER)
        self._write_config(changes or {})

    def _write_config(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        settings = small_settings(
            self.checkout / "runs",
            run={"iterations": None},
            training={"games_per_iteration": 200, "checkpoint_every": 1},
            self_play={"games_per_worker": 60},
        )
        values = settings.model_dump(mode="json")
        values["distributed"] |= {
            "enabled": True,
            "ray": {"address": self.nodes.address},
            "worker_class": WORKER_CLASS,
            "sync_interval": 10,
        }
        for section, changed in changes.items():
            values[section] |= changed
        (self.checkout / "configs" / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))

    def states(self) -> dict[str, str]:
        """Return the state of each worker in the status of this session."""
        try:
            found = json.loads((self.checkout / "distributed" / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return {} if found["ended"] else {worker["name"]: worker["state"] for worker in found["workers"]}

    def active(self) -> set[str]:
        """Return the workers that are Active."""
        return {name for name, state in self.states().items() if state == ACTIVE}

    def workers_now_on(self, node: str) -> set[str]:
        """Return the workers whose process runs on a node."""
        places = (self.nodes.home(node) / "keima" / "workers").glob("ray-*")
        return {place.name for place in places if find_running(place)}

    def wait(self, condition: Callable[[], object], what: str, *, seconds: float = WAIT_SECONDS) -> float:
        """Wait for a condition; return the seconds that it took."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert self.runs, f"the program has ended while {what} was waited for; {self.how_it_stands()}"
            assert waited < seconds, f"waited {seconds:.0f} s in vain for {what}; {self.how_it_stands()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def how_it_stands(self) -> str:
        """Return the ends of status, log and output."""
        texts = (self.checkout / "distributed" / "status.txt", self.run_dir / "coach.log", self.output)
        return "\n\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in texts if path.exists())

    def received(self) -> list[str]:
        """Return the batches in the ledger, in the order of receipt."""
        with read_ledger(self.run_dir) as ledger:
            return [row.id for row in ledger.received_batches()]

    def games(self) -> int:
        """Return the number of received games."""
        with read_ledger(self.run_dir) as ledger:
            return sum(account.received for account in ledger.accounts().values())

    def left_on_nodes(self) -> set[str]:
        """Return the batches in outboxes of nodes that live."""
        homes = [self.nodes.home(name) for name in self.nodes.names]
        return {path.stem for home in homes for path in home.glob("keima/workers/*/outbox/*.games")}

    def audit(self) -> Audit:
        """Return the audit of the run."""
        return audit(self.run_dir)


def ray_run(folder: Path, nodes: Nodes, **options: Any) -> AbstractContextManager[RayRun]:
    """Return a block with a ``RayRun`` with these arguments, whose program ends with the block."""
    return ended_with_the_block(RayRun(folder, nodes, **options))
