#!/usr/bin/env python3
"""Train a network to play 2048 on all cores and GPUs of this machine; ``--help`` explains it
(``keima.cli.training.train_2048``).
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.training.train_2048", run_name="__main__")
