#!/usr/bin/env python3
"""Train a big network on files of games, on one or several GPUs or machines; ``--help`` explains it
(``keima.cli.training.big_learner``).
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.training.big_learner", run_name="__main__")
