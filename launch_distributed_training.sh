#!/bin/sh
# Starts train_distributed.py on the GPUs of this machine, by torchrun; on several machines, start it on each.
set -eu

usage() {
    cat <<END
Train a big network on all GPUs of one machine or of several, by torchrun.

    ./launch_distributed_training.sh --gpus 8 --batch-size 2048 --mixed-precision -- --data games --epochs 4
    ./launch_distributed_training.sh --gpus 8 --nodes 2 --node-rank 0 --master-addr 192.168.1.100 --master-port 12355 \\
        --batch-size 2048 --mixed-precision -- --data games
    ... and on the second machine the same with --node-rank 1

  --gpus N           ranks on this machine (default: its GPUs, or 1 without any)
  --nodes N          machines (default: 1)
  --node-rank N      which of them this is, from 0 (default: 0): 0 is where they meet; rank 0, which prints and saves, is on
                     the machine whose address comes first as text
  --master-addr HOST the machine with --node-rank 0, as the others reach it (default: localhost)
  --master-port N    a free port there (default: 29500)
  --batch-size N     positions of a step, of all ranks together (default: train_distributed.py's)
  --mixed-precision  compute in 16 bits where it is fast
  --max-restarts N   how often all ranks begin anew, from the last checkpoint, after one has died (default: 3)
  --help             this

Everything after -- goes to train_distributed.py, as do flags that are not known here: see python train_distributed.py --help
for --data, --epochs, --save-dir, --resume and more. KEIMA_PYTHON says which Python (default: .venv/bin/python, or else python3).
END
}

refuse() {
    echo "launch_distributed_training.sh: $1" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
gpus= nodes=1 node_rank=0 master_addr=localhost master_port=29500 restarts=3
number() { case $2 in '' | *[!0-9]*) refuse "$1 ${2:-} : expected a whole number" ;; esac }

count=$#
while [ "$count" -gt 0 ]; do
    flag=$1
    shift
    count=$((count - 1))
    case $flag in
    --gpus | --nodes | --node-rank | --master-addr | --master-port | --max-restarts)
        [ "$count" -gt 0 ] || refuse "$flag needs a value"
        value=$1
        shift
        count=$((count - 1))
        [ "$flag" = --master-addr ] || number "$flag" "$value"
        case $flag in
        --gpus) gpus=$value ;;
        --nodes) nodes=$value ;;
        --node-rank) node_rank=$value ;;
        --master-addr) master_addr=$value ;;
        --master-port) master_port=$value ;;
        --max-restarts) restarts=$value ;;
        esac
        ;;
    --help | -h)
        usage
        exit 0
        ;;
    --)
        while [ "$count" -gt 0 ]; do
            set -- "$@" "$1"
            shift
            count=$((count - 1))
        done
        ;;
    *) set -- "$@" "$flag" ;;
    esac
done

if [ -z "$gpus" ]; then
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
    [ "$gpus" -gt 0 ] || gpus=1
fi
[ "$gpus" -ge 1 ] || refuse "--gpus $gpus: expected at least 1"
[ "$node_rank" -lt "$nodes" ] || refuse "--node-rank $node_rank is none of --nodes $nodes: they are numbered from 0"
python=${KEIMA_PYTHON:-$here/.venv/bin/python}
[ -x "$python" ] || python=python3

# The address by which the other machines reach this one: names may lead nowhere.
local_addr=$("$python" -c 'import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    probe.connect((sys.argv[1], 9))
    sys.stdout.write(probe.getsockname()[0])' "$master_addr") || refuse "--master-addr $master_addr cannot be reached"

# What is refused is refused here, once: torchrun would start all ranks anew as after a failure.
"$python" "$here/train_distributed.py" --check --world-size "$((gpus * nodes))" "$@" || exit $?

# Under nohup all go on without their terminal; by itself torchrun would end with it all the same.
if grep -q '^SigIgn:.*[13579bdf]$' /proc/self/status 2>/dev/null; then
    export TORCHELASTIC_SIGNALS_TO_HANDLE="${TORCHELASTIC_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGQUIT}"
fi

is_host=$([ "$node_rank" -eq 0 ] && echo true || echo false)
exec "$python" -m torch.distributed.run \
    --nnodes "$nodes" --nproc-per-node "$gpus" --node-rank "$node_rank" --max-restarts "$restarts" --local-addr "$local_addr" \
    --rdzv-backend c10d --rdzv-endpoint "$master_addr:$master_port" --rdzv-id "keima-$master_port" --rdzv-conf "is_host=$is_host" \
    "$here/train_distributed.py" "$@"
