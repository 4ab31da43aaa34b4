"""The guide to the SSH cluster, typed verbatim on a main node and three separate machines, from its first to its last
command.

The machines are network namespaces, each with an sshd; their names, ``worker1.example.com`` and so on, and the account
``username`` are the guide's. Everything is typed at terminals, including passwords and Enter. What differs from the
guide:

- the repository of ``git clone`` is this checkout, by git's ``insteadOf``;
- ``pip install -r requirements.txt`` finds everything in the environment in which the tests run, to which each clone
  has a link ``.venv``;
- ``configs/config.yaml`` has the guide's four blocks one below the other, those of ``distributed:`` merged into one.
  The game is tic-tac-toe in its smallest form, and batches wait no longer than a second for their games
  (``flush_seconds``);
- ``custom_worker.py``, which the guide has at its end, and ``worker_class`` are present from the beginning;
- ``tail -f`` and ``watch`` are ended when they have shown something;
- ``worker2`` gets its key only after it was an Error without it, which the guide does not say;
- the environments of ``worker2`` and ``new_worker`` are not checked again: they are that of ``worker1``;
- each machine may use one core, so it has one worker.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from keima.cli.reports.audit import audit
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.paths import CACHE
from tests.lab.driver import PATIENCE
from tests.lab.hosts import Host, Hosts, running_hosts, why_not
from tests.lab.processes import command_line
from tests.programs import Terminal
from tests.small_run import small_settings
from tests.sources import copy_checkout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.trial,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

CONFIGURE = """\
distributed:
  enabled: true
  workers:
    - host: "worker1.example.com"
      user: "username"
      key_path: "~/.ssh/id_rsa"
      gpu_id: 0
    - host: "worker2.example.com"
      user: "username"
      key_path: "~/.ssh/id_rsa"
      gpu_id: 1
"""
PREPARE = """\
# Clone the repository
git clone https://github.com/yourusername/AZ-Go.git
cd AZ-Go

# Install dependencies
pip install -r requirements.txt

# Verify GPU availability
python -c "import torch; print(torch.cuda.is_available())"
"""
KEYS = """\
# Generate SSH key if needed
ssh-keygen -t rsa -b 4096

# Copy to workers
ssh-copy-id username@worker1.example.com
"""
START = "python start_main.py --distributed"
STATUS = """\
# View all worker statuses
cat distributed/status.txt

# Monitor in real-time
watch -n 1 cat distributed/status.txt
"""
STATES = {"🟢": "Active", "🟡": "Syncing", "🔴": "Error", "⚪": "Offline"}
NETWORK = """\
distributed:
  compression: true  # Enable compression
  batch_size: 100   # Games per transfer
  sync_interval: 50 # Games between syncs
"""
GPUS = """\
self_play:
  games_per_worker: 1000
  parallel_games: 4  # Parallel MCTS instances
  batch_size: 8      # Neural net batch size
"""
BALANCE = """\
# In configs/config.yaml
distributed:
  load_balancing: true
  worker_weights:
    worker1: 1.0  # Standard performance
    worker2: 2.0  # 2x faster machine
"""
RESTART = "python distributed/ssh_connector.py --restart worker1"
MAIN_LOG, WORKER_LOG = "tail -f logs/distributed_training.log", "tail -f logs/worker_*.log"
METRICS = """\
# View in training output
Games/second: 145.2
Workers active: 4/4
Model sync time: 12.3s
Network usage: 45.6 MB/min
"""
CUSTOM_WORKER = """\
# custom_worker.py
from training.worker import Worker

class CustomWorker(Worker):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Custom initialization
"""
ADD = """\
from distributed.ssh_connector import SSHConnector

connector = SSHConnector()
connector.add_worker("new_worker.com", "username")
"""

NAMES = ("worker1.example.com", "worker2.example.com", "new_worker.com")
BARE = "AZ-Go.git"
REPOSITORY = "https://github.com/yourusername/AZ-Go.git"
PASSWORD, PASSWORD_HASH = (
    "typed-in-the-guide",
    ("$6$keima$BvtAy2XUxjWMr1bAVoefKK8qd60A0SNksUuQLfUX9gxmdPGgDuHPz1VSwWcWAlC1z84FrZrtuuKBNnn0sMjax0"),
)
UNKNOWN_HOST, ASKS_PASSWORD = ("(yes/no", "yes"), ("assword:", PASSWORD)
AT_HOME = 'mount --bind "$1" /etc/hosts; mount --bind "$2" /etc/passwd; cd "$3"; shift 3; exec "$@"'


def commands(block: str) -> list[str]:
    """Return the lines of a block that are typed."""
    return [line for line in block.splitlines() if line and not line.startswith("#")]


def body(block: str) -> str:
    """Return a block of settings without the name of its section."""
    return block.partition("distributed:\n")[2]


class MainNode:
    """The user's own machine: a home, a checkout in it, and the commands typed there with their output."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.hosts = hosts
        self.home = folder / "home"
        self.checkout = self.home / "AZ-Go"
        self.output = folder / "output"
        self.shown: dict[str, str] = {}
        self.states: set[tuple[str, str]] = set()  # as status.txt has shown them
        self.coach: subprocess.Popen[bytes] | None = None
        self.home.mkdir(mode=0o700)
        self._files = [folder / "hosts", folder / "passwd"]
        names = "".join(f"{host.address} {name}\n" for host, name in zip(hosts, NAMES, strict=True))
        self._files[0].write_text(f"127.0.0.1 localhost\n{names}")
        accounts = Path("/etc/passwd").read_text(encoding="utf-8")
        self._files[1].write_text(re.sub(r"^(root:.*):[^:\n]*:", rf"\1:{self.home}:", accounts, flags=re.MULTILINE))
        self.environment = {"HOME": str(self.home), "KEIMA_CACHE": str(CACHE)}

    def line(self, *argv: str, inside: str = "AZ-Go") -> list[str]:
        """Return a command on this machine, in a folder of the home."""
        return ["unshare", "--mount", "sh", "-c", AT_HOME, "sh", *map(str, self._files), str(self.home / inside), *argv]

    def type(self, command: str, *answers: tuple[str, str], until: str = "", inside: str = "AZ-Go") -> str:
        """Type a command and, when it asks, answers; return the output. It is ended when it has shown ``until``, if
        given.
        """
        with Terminal(*self.line("bash", "-c", command, inside=inside), environment=self.environment) as terminal:
            seen = 0
            for question, answer in answers:
                terminal.wait_for(
                    lambda question=question, seen=seen: question in terminal.shown[seen:].decode("utf-8", "replace")
                )
                seen = len(terminal.shown)
                terminal.type(f"{answer}\n")
            if until:
                terminal.wait_for(lambda: until in terminal.shown.decode("utf-8", "replace"))
            else:
                code = terminal.wait()
            shown = terminal.shown.decode("utf-8", "replace")
            assert until or code == 0, shown
        self.shown[command] = shown
        return shown

    def start(self) -> None:
        """Start the training, with its output in a file."""
        with self.output.open("wb") as output:
            self.coach = subprocess.Popen(
                self.line(*START.split()),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the workers' states by name."""
        folder = self.checkout / "distributed"
        try:
            shown = (folder / "status.txt").read_text(encoding="utf-8")
            self.states |= {(symbol, word) for symbol, word in STATES.items() if f"{symbol} {word} " in shown}
            return {worker["name"]: worker for worker in json.loads((folder / "status.json").read_bytes())["workers"]}
        except FileNotFoundError:
            return {}

    def wait(self, condition: Callable[[dict[str, dict[str, Any]]], object], what: str) -> None:
        """Wait for a condition on the workers."""
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition(self.status()):
            assert self.coach and self.coach.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, f"{what}: {self.status()}\n{self.output.read_text()[-3000:]}"
            time.sleep(0.05)

    def wait_for_state(self, state: str, *names: str) -> None:
        """Wait until these workers have this state."""
        self.wait(
            lambda found: all(found.get(name, {}).get("state") == state for name in names), f"{names} to be {state}"
        )

    def received(self, worker: str) -> int:
        """Return how many batches of a worker are in the ledger."""
        with read_ledger(self.checkout / "runs" / "small") as ledger:
            return sum(row.worker == worker for row in ledger.received_batches())


def typed_at(host: Host, block: str, *, seconds: float = PATIENCE) -> str:
    """Type a block on a machine, as its user in their home; return the output."""
    public = f"GIT_CONFIG_KEY_0=url.file:///home/{host.user}/{BARE}.insteadOf"
    done = host.run(["env", public, "bash", "-ec", block], seconds=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def on_one_core() -> Iterator[None]:
    """Within the block, started processes may use one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def let_in_by_password(host: Host) -> None:
    """Give the machine's user the guide's name, and a password for copying the first key."""
    passwd, shadow, sshd = (host.files / name for name in ("passwd", "shadow", "ssh/sshd_config"))
    account = next(line for line in passwd.read_text().splitlines() if line.startswith(f"{host.user}:"))
    with passwd.open("a") as file:
        file.write(account.replace(f"{host.user}:", "username:", 1) + "\n")
    with shadow.open("a") as file:
        file.write(f"username:{PASSWORD_HASH}:19000:0:99999:7:::\n")
    text = sshd.read_text().replace("PasswordAuthentication no", "PasswordAuthentication yes")
    with sshd.open("r+") as file:  # it is mounted there: the file must stay the same one
        file.truncate()
        file.write(text)
    (host.home / ".ssh" / "authorized_keys").unlink()
    host.kill_sshd()
    host.start_sshd()


def publish(repository: Path) -> None:
    """Make this checkout the repository that the guide clones, with the settings and the worker of a reader who follows
    it.
    """
    copy_checkout(repository, "logs/.gitignore", ".gitignore")
    (repository / "custom_worker.py").write_text(CUSTOM_WORKER)
    git = ["git", "-c", "user.name=Keima", "-c", "user.email=keima@example.com"]
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["commit", "-qm", "Keima"],
        ["clone", "-q", "--bare", ".", f"../{BARE}"],
    ):
        subprocess.run([*git, *words], cwd=repository, check=True)


def configure(main: MainNode) -> None:
    """Edit ``configs/config.yaml`` as the guide says."""
    small = small_settings(Path("runs"), run={"iterations": None}, training={"games_per_iteration": 200}).model_dump(
        mode="json"
    )
    others = {name: section for name, section in small.items() if name not in ("distributed", "self_play")}
    text = yaml.safe_dump(others, sort_keys=False) + GPUS + "  flush_seconds: 1.0\n"
    text += CONFIGURE + body(NETWORK) + body(BALANCE) + "  worker_class: custom_worker.CustomWorker\n"
    (main.checkout / "configs" / "config.yaml").write_text(text)


def forget_worker2(main: MainNode) -> None:
    """Edit the file and remove a worker; its weight stays."""
    config = main.checkout / "configs" / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if "worker2.example.com" in line)
    config.write_text("".join(lines[:first] + lines[first + 4 :]))


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainNode]:
    """The guide, typed from its first to its last command."""
    folder = tmp_path_factory.mktemp("guide")
    publish(folder / "repository")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        with on_one_core():
            hosts = stack.enter_context(running_hosts(3))
            for host in hosts:
                let_in_by_password(host)
        for name, value in (
            ("COUNT", "1"),
            ("KEY_0", f"url.file://{folder / BARE}.insteadOf"),
            ("VALUE_0", REPOSITORY),
        ):
            patch.setenv(f"GIT_CONFIG_{name}", value)
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        main = MainNode(folder, hosts)
        try:
            follow(main)
            yield main
        finally:
            if main.coach and main.coach.poll() is None:
                main.coach.kill()


def follow(main: MainNode) -> None:
    """Type everything."""
    worker1, worker2, new = main.hosts
    main.type(commands(PREPARE)[0], inside=".")
    configure(main)
    prepare(main)
    generate, copy = commands(KEYS)
    main.type(generate, ("save the key", ""), ("passphrase", ""), ("again", ""), inside=".")
    main.type(copy, UNKNOWN_HOST, ASKS_PASSWORD, inside=".")

    main.start()
    main.wait_for_state("Active", "worker1")
    main.wait_for_state("Error", "worker2")
    main.shown["worker2 without a key"] = main.status()["worker2"]["reason"]
    main.type("ssh-copy-id username@worker2.example.com", UNKNOWN_HOST, ASKS_PASSWORD, inside=".")
    main.type("python distributed/ssh_connector.py --restart worker2")
    main.wait_for_state("Active", "worker1", "worker2")
    main.wait(
        lambda found: min(worker["model_version"] for worker in found.values()) > 1,
        "models of the training to be there",
    )

    main.shown["worker1's command"] = "\n".join(map(command_line, processes_of(worker1)))
    cat, watch = commands(STATUS)
    main.type(cat)
    main.type(watch, until="Workers active: 2/2")
    (before,) = processes_of(worker1)
    main.type(RESTART)
    main.wait(lambda found: processes_of(worker1) not in ([], [before]), "another process")
    main.wait_for_state("Active", "worker1")
    main.type(MAIN_LOG, until="worker1")
    worker_log = host_tail(worker1)
    main.shown[WORKER_LOG] = worker_log

    main.type("ssh-copy-id username@new_worker.com", UNKNOWN_HOST, ASKS_PASSWORD, inside=".")
    (main.checkout / "add.py").write_text(ADD)
    main.type("python add.py")
    main.wait_for_state("Active", "new_worker")
    main.wait(lambda found: main.received("new_worker"), "games of the new worker")
    new.link.cut()
    main.wait_for_state("Offline", "new_worker")
    others = main.received("worker1")
    main.wait(lambda found: main.received("worker1") > others, "the others to play on")
    new.link.heal()
    main.wait_for_state("Active", "new_worker")

    forget_worker2(main)
    main.wait(lambda found: set(found) == {"worker1", "new_worker"} and not processes_of(worker2), "worker2 to be gone")
    others = main.received("worker1")
    main.wait(lambda found: main.received("worker1") > others, "training to go on with the others")
    assert main.coach
    main.coach.send_signal(signal.SIGINT)  # ``unshare`` has become the program
    main.shown["exit code"] = str(main.coach.wait(PATIENCE))
    main.shown[START] = main.output.read_text()


def prepare(main: MainNode) -> None:
    """Prepare the workers' environments. They also get the code compiled here: they are all this machine."""
    python = str(Path(sys.executable))
    subprocess.run(
        [python, "start_worker.py", "--test-games", "tic_tac_toe"],
        cwd=main.checkout,
        env={**os.environ, **main.environment},
        check=True,
        capture_output=True,
    )
    for host in main.hosts:
        hand_over(host, main.home.parent / BARE, BARE)
        main.shown[f"{PREPARE} on {host.name}"] = typed_at(
            host, PREPARE if host is main.hosts[0] else commands(PREPARE)[0]
        )
        typed_at(host, f"ln -s {sys.prefix} AZ-Go/.venv")
        hand_over(host, CACHE, ".cache/keima")


def hand_over(host: Host, folder: Path, name: str) -> None:
    """Copy a folder into the home of a machine's user and give it to them."""
    shutil.copytree(folder, host.home / name)
    owner = host.home.stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(host.home / Path(name).parts[0])], check=True)


def processes_of(host: Host) -> list[int]:
    """Return the worker processes of a machine."""
    return [pid for pid in host.pids() if "keima/__main__.py worker" in command_line(pid)]


def host_tail(host: Host) -> str:
    """Return what ``tail -f`` shows of a worker's log on its machine."""
    done = host.run(["bash", "-c", f"cd AZ-Go; timeout 5 {WORKER_LOG}"], seconds=60)
    return done.stdout + done.stderr


def test_the_settings_of_the_guide_load_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("run:\n  name: guide\ngame:\n  name: go\n" + GPUS + CONFIGURE + body(NETWORK) + body(BALANCE))
    settings = load_settings(path)
    assert [(worker.name, worker.user, worker.gpu_id) for worker in settings.distributed.workers] == [
        ("worker1", "username", 0),
        ("worker2", "username", 1),
    ]
    assert {worker.key_path for worker in settings.distributed.workers} == {"~/.ssh/id_rsa"}
    assert (settings.self_play.games_per_worker, settings.self_play.parallel_games, settings.self_play.batch_size) == (
        1000,
        4,
        8,
    )
    cluster = settings.distributed
    assert (cluster.compression, cluster.batch_size, cluster.sync_interval, cluster.load_balancing) == (
        True,
        100,
        50,
        True,
    )
    assert cluster.enabled and cluster.worker_weights == {"worker1": 1.0, "worker2": 2.0}


def test_the_requirements_contain_torch_and_a_machine_reports_whether_it_has_a_gpu(guide: MainNode) -> None:
    shown = guide.shown[f"{PREPARE} on worker1"]
    assert "Requirement already satisfied: torch" in shown
    assert shown.splitlines()[-1] in ("True", "False")


def test_a_key_of_the_guide_s_kind_logs_in_without_a_password(guide: MainNode) -> None:
    generate, copy = commands(KEYS)
    assert "Generating public/private rsa key pair" in guide.shown[generate]
    assert "Number of key(s) added: 1" in guide.shown[copy]
    kind = subprocess.run(
        ["ssh-keygen", "-l", "-f", guide.home / ".ssh" / "id_rsa"], capture_output=True, text=True, check=True
    ).stdout
    assert kind.startswith("4096 ") and kind.rstrip().endswith("(RSA)")


def test_a_worker_that_cannot_connect_is_an_error_with_the_command_that_fixes_it(guide: MainNode) -> None:
    assert "is not known" in guide.shown["worker2 without a key"]
    assert "Number of key(s) added: 1" in guide.shown["ssh-copy-id username@worker2.example.com"]


def test_the_status_shows_all_four_states_with_their_words(guide: MainNode) -> None:
    assert guide.states == set(STATES.items())


def test_cat_and_watch_show_the_status(guide: MainNode) -> None:
    cat, watch = commands(STATUS)
    for name in ("worker1", "worker2"):
        assert re.search(rf"🟢 Active +{name} ", guide.shown[cat])
        assert name in guide.shown[watch]


def test_each_metric_has_the_guide_s_format_in_the_output_and_in_the_status(guide: MainNode) -> None:
    for line in commands(METRICS):
        form = re.sub(
            r"[0-9]+(\\\.[0-9])?", lambda figure: r"[0-9,]+" + (r"\.[0-9]" if figure[1] else ""), re.escape(line)
        )
        for where in (START, commands(STATUS)[0]):
            assert re.search(rf"{form}(?![0-9.])", guide.shown[where]), (line, guide.shown[where])


def test_logs_can_be_followed_on_both_ends(guide: MainNode) -> None:
    assert "worker1" in guide.shown[MAIN_LOG]
    assert "worker worker1: process" in guide.shown[WORKER_LOG]


def test_the_guide_s_command_restarts_a_worker(guide: MainNode) -> None:
    assert "worker1" in guide.shown[RESTART]


def test_a_worker_added_during_training_is_in_the_settings_and_the_next_step_is_printed(guide: MainNode) -> None:
    settings = load_settings(guide.checkout / "configs" / "config.yaml")
    assert [worker.host for worker in settings.distributed.workers] == ["worker1.example.com", "new_worker.com"]
    assert "new_worker is in" in guide.shown["python add.py"]
    assert "cluster bootstrap new_worker" in guide.shown["python add.py"]
    assert guide.received("new_worker")


def test_a_worker_may_be_removed_from_the_file_while_its_weight_stays(guide: MainNode) -> None:
    assert load_settings(guide.checkout / "configs" / "config.yaml").distributed.worker_weights == {
        "worker1": 1.0,
        "worker2": 2.0,
    }
    assert guide.received("worker2")


def test_the_guide_s_worker_class_plays_in_the_clone_with_its_environment(guide: MainNode) -> None:
    clone = f"/home/{guide.hosts[0].user}/AZ-Go"
    assert guide.shown["worker1's command"].startswith(
        f"{clone}/.venv/bin/python {clone}/keima/__main__.py worker --folder workers/worker1 "
    )
    assert "--worker-class custom_worker.CustomWorker" in guide.shown["worker1's command"]


def test_the_run_ends_cleanly_and_its_ledger_balances(guide: MainNode) -> None:
    assert guide.shown["exit code"] == "130"
    assert "Traceback" not in guide.shown[START]
    found = audit(guide.checkout / "runs" / "small")
    assert not found.problems and found.games > 0
    assert not [pid for host in guide.hosts for pid in processes_of(host)]
