#!/usr/bin/env python3
"""Train a network by self-play on this machine's GPUs (``keima.cli.training.train_multi_gpu``); see ``--help``."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("keima.cli.training.train_multi_gpu", run_name="__main__")
