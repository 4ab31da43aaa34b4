#!/usr/bin/env python3
"""Watch a run in the terminal (``keima.cli.reports.watch``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.reports.watch", run_name="__main__")
