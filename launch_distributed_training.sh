#!/bin/sh
# Starts train_distributed.py on the GPUs of this machine, by torchrun; on several machines, start it on each.
set -eu

usage() {
    cat <<END
Train a big network on all GPUs of one or more machines, by torchrun.

    ./launch_distributed_training.sh                          on all GPUs, on the newest run's games
    ./launch_distributed_training.sh --gpus 8 --batch-size 2048 --mixed-precision --data runs/chess --epochs 4
    ./launch_distributed_training.sh --gpus 8 --nodes 2 --node-rank 0 --master-addr 192.168.1.100
    ... and on the second machine the same with --node-rank 1

  --gpus N           ranks on this machine (default: one per GPU); with fewer GPUs, one rank per GPU trains, and
                     without GPUs at most one per core
  --nodes N          number of machines (default: 1)
  --node-rank N      number of this machine, from 0 (default: 0); all meet at machine 0. Rank 0, which prints and
                     saves, is on the machine whose address comes first as text
  --master-addr HOST address of the machine with --node-rank 0 (default: localhost)
  --master-port N    a free port there (default: 12355)
  --batch-size N     positions per step, over all ranks (default: 1024)
  --mixed-precision  compute in 16 bits where that is fast
  --max-restarts N   restarts of all ranks, from the last checkpoint, after one has died (default: 3)
  --help             show this help

All other flags are passed to train_distributed.py: see its --help for --data, --epochs, --save-dir, --resume and more.
KEIMA_PYTHON selects the Python interpreter (default: .venv/bin/python, else python3).
END
}

for word; do
    case $word in --help | -h)
        usage
        exit 0
        ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
python=${KEIMA_PYTHON:-$here/.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" "$here/train_distributed.py" --launch "$@"
