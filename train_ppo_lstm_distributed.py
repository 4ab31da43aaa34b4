#!/usr/bin/env python3
"""Train a trading policy on all GPUs of this machine: ``train_ppo_lstm.py --distributed``, with the same flags.

    python train_ppo_lstm_distributed.py --num-gpus 4 --episodes 10000
    python train_ppo_lstm_distributed.py --num-gpus 2 --device cpu --smoke       two processes on the CPU

torchrun starts one process per GPU, and restarts all from the last checkpoint if one dies.
See train_ppo_lstm.py --help.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().with_name("train_ppo_lstm.py")
    os.execv(sys.executable, [sys.executable, str(program), "--distributed", *sys.argv[1:]])
