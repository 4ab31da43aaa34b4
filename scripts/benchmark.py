#!/usr/bin/env python3
"""Measure a network by games (``keima.cli.playing.benchmark``); ``--help`` explains it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.playing.benchmark", run_name="__main__")
