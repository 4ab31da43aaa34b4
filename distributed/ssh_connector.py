#!/usr/bin/env python3
"""Manage the machines of a cluster: the door to ``keima cluster``; ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.cluster", run_name="__main__")
else:
    from keima.cluster.connector import *  # noqa: F403
    from keima.cluster.connector import SSHConnector

    __all__ = ["SSHConnector"]
