#!/bin/sh
# Starts train_distributed.py on the GPUs of this machine, by torchrun; on several machines, start it on each.
set -eu

usage() {
    cat <<END
Train a big network on all GPUs of one machine or of several, by torchrun.

    ./launch_distributed_training.sh                          on all GPUs, on the newest run's games
    ./launch_distributed_training.sh --gpus 8 --batch-size 2048 --mixed-precision --data games --epochs 4
    ./launch_distributed_training.sh --gpus 8 --nodes 2 --node-rank 0 --master-addr 192.168.1.100
    ... and on the second machine the same with --node-rank 1

  --gpus N           ranks on this machine, a GPU each (default: as many as it has); where there are fewer GPUs, as many ranks
                     as there are train, and without any GPU a rank for each core at most
  --nodes N          machines (default: 1)
  --node-rank N      which of them this is, from 0 (default: 0): 0 is where they meet; rank 0, which prints and saves, is on
                     the machine whose address comes first as text
  --master-addr HOST the machine with --node-rank 0, as the others reach it (default: localhost)
  --master-port N    a free port there (default: 12355)
  --batch-size N     positions of a step, of all ranks together (default: 1024)
  --mixed-precision  compute in 16 bits where it is fast
  --max-restarts N   how often all ranks begin anew, from the last checkpoint, after one has died (default: 3)
  --help             this

All other flags are train_distributed.py's: see python train_distributed.py --help for --data, --epochs, --save-dir, --resume and more.
KEIMA_PYTHON says which Python (default: .venv/bin/python, or else python3).
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
