#!/usr/bin/env python3
"""Train a trader with a memory on all GPUs of this machine: ``train_ppo_lstm.py --distributed``, whose flags this
takes.

    python train_ppo_lstm_distributed.py --num-gpus 4 --episodes 10000
    python train_ppo_lstm_distributed.py --num-gpus 2 --device cpu --smoke       two processes on the CPU

torchrun starts a process for each GPU, and starts all anew from the last checkpoint if one dies. See train_ppo_lstm.py
--help.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    program = Path(__file__).resolve().with_name("train_ppo_lstm.py")
    os.execv(sys.executable, [sys.executable, str(program), "--distributed", *sys.argv[1:]])
