#!/usr/bin/env python3
"""Train a trading policy with PPO and an LSTM (``keima.cli.training.ppo``); ``--help`` explains it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("keima.cli.training.ppo", run_name="__main__")
