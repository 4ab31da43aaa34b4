"""A fleet whose machines are two slots of a Ray cluster."""

from pathlib import Path
from typing import Any

from keima.cluster.fleet.backend import Fleet
from keima.cluster.machines.release import worker_requirements
from keima.config.sections.ray import RaySettings
from tests.cluster.local_fleet import fleet_settings
from tests.cluster.ray.nodes import Nodes
from tests.small_run import GAME


class RayFleet(Fleet):
    """The fleet, with its mirrors in ``root`` / workers, and the folder of all nodes in ``root`` / node."""

    def __init__(self, root: Path, nodes: Nodes, **changes: Any) -> None:
        from keima.cluster.ray.source import RaySource

        (root / "workers").mkdir(exist_ok=True)
        self._source = RaySource(
            RaySettings(address=nodes.address, slots=2, directory=str(root / "node")),
            root=root / "workers",
            run_id="run",
            required=worker_requirements(),
            coach="",
        )
        super().__init__(
            root / "workers",
            self._source.machines(),
            game=GAME,
            settings=fleet_settings(root, **changes),
            run_id="run",
            connect=self._source.connect,
            process_manager=self._source.process_manager,
        )

    def close(self) -> None:
        super().close()
        self._source.close()
