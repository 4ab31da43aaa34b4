#!/usr/bin/env python3
"""Make positions with exact values (``keima.cli.make_perfect_play_positions``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.make_perfect_play_positions", run_name="__main__")
