"""Manage the machines of a cluster, with or without a running Coach.

    keima cluster check                      check every machine; show what to fix, and how
    keima cluster bootstrap worker1 worker2  install the code and its environment, and verify them
    keima cluster add HOST USER              add a machine; a running Coach uses it within seconds
    keima cluster status                     show the state of all workers
    keima cluster restart laboratory         restart all workers of a group
    keima cluster gather-logs DIR            copy the logs of all workers into DIR

Commands take the names of workers, machines and groups. Without names, check, status, bootstrap, logs and gather-logs
mean all workers. They connect to several machines at once. `keima cluster COMMAND --help` explains each.

In scripts: from keima import SSHConnector; SSHConnector().add_worker("new_worker.com", "username")

Commands about workers are carried out by the running Coach. Without one, they change the settings file and act on the
machines directly. `python distributed/ssh_connector.py --check` is the same as `keima cluster check`, and so on.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.named import find_experiment, flag_type
from keima.base.system.command_line import CommandLine
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import check_file_is_readable, parse_before_imports, print_status
from keima.cluster.limits import AT_ONCE, LOG_LINES, LOG_MEGABYTES
from keima.config.descriptions import describe_setting
from keima.config.flags import add_setting, whole

MOST_IN_FULL = 12  # checked machines; beyond that, a machine that is ready takes one line
COMMANDS = {
    "check": "check machines, and show what to fix",
    "bootstrap": "install the code and its environment on machines, and verify them",
    "add": "add a machine to the settings and the running Coach",
    "remove": "remove machines from the settings and the running Coach; no finished game is lost",
    "restart": "restart workers",
    "stop": "stop workers until they are restarted",
    "takeover": "have the running Coach take workers from another Coach",
    "status": "show the workers, as the Coach or else the machines report them",
    "logs": "show the ends of workers' logs",
    "wheel": "write the code of a worker as a wheel, for pip",
    "gather-logs": "copy the logs of workers to this machine: into a new folder in DIR for each machine",
}
ADDED = ("host", "user", "name", "key_path")  # settings of a machine that are added, in words
ABOUT_ALL = ("check", "bootstrap", "status", "logs", "gather-logs")  # without names, these are about all workers
DONE = {"restart": "restarted", "stop": "ended", "takeover": "taken over", "remove": "removed"}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line: ``check worker1``, or ``--check worker1``."""
    parser = CommandLine(__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, about in COMMANDS.items():
        add = commands.add_parser(command, help=about, description=f"{about[0].upper()}{about[1:]}.").add_argument
        if command == "add":
            meaning = {name: describe_setting(f"distributed.workers.{name}") for name in ADDED}
            add("host", metavar="HOST", help=meaning["host"])
            add("user", metavar="USER", nargs="?", help=meaning["user"])
            add("--name", help=meaning["name"])
            add_setting(add, "--port", "distributed.workers.port", dest="port")
            add("--key-path", help=meaning["key_path"])
        if command in ("gather-logs", "wheel"):
            add("folder", type=Path, metavar="DIR", help="output folder; created if missing")
        if command not in ("add", "wheel"):
            which = "workers, machines or groups"
            every = command in ABOUT_ALL
            add(
                "names", nargs="*" if every else "+", metavar="NAME", help=f"{which} (default: all)" if every else which
            )
        add(
            "--config",
            type=flag_type(find_experiment),
            help="settings file (default: the running Coach's, else configs/config.yaml)",
        )
        if command == "bootstrap":
            add("--wheels", type=Path, metavar="DIR", help=describe_setting("distributed.pip.wheels"))
        if command == "logs":
            add("--lines", type=whole(), default=LOG_LINES, help="lines of each log (default: %(default)s)")
        if command == "gather-logs":
            end = "copy at most the last N MB of each log (default: %(default)s)"
            add("--log-megabytes", type=whole(1, 15), default=LOG_MEGABYTES, metavar="N", help=end)
        if command not in ("add", "wheel"):
            most = "connect to at most N machines at a time (default: %(default)s)"
            add("--at-once", type=whole(1, 256), default=AT_ONCE, metavar="N", help=most)
    return parser.parse_args(move_command_first(sys.argv[1:] if argv is None else argv))


def move_command_first(words: Sequence[str]) -> list[str]:
    """Return a command line whose command may be a flag, such as ``--config FILE --check``, with the command first."""
    flags = [word for word in words if word.startswith("--") and word[2:] in COMMANDS]
    if not flags or words[0] in COMMANDS:
        return list(words)
    at = words.index(flags[0])
    return [flags[0][2:], *words[:at], *words[at + 1 :]]


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that the settings file exists.

    Raises:
        ValueError: it does not.
    """
    if arguments.config:
        check_file_is_readable(arguments.config)


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)

from rich.console import Console

from keima.base.system.threads import run_in_parallel
from keima.cluster.connector import CheckedMachine, NotDone, Outcome, Progress, SSHConnector, combine_results
from keima.cluster.ssh.host_keys import KeyScan, scan_commands
from keima.config.commands import cluster


def _quiet_connector(config: Path | None) -> SSHConnector:
    """Return a connector that logs nothing, since the caller shows its texts."""
    return SSHConnector(config, log_event=lambda text: None)


@handle_interrupts
def main(argv: Sequence[str] | None = None, *, make: Callable[[Path | None], SSHConnector] = _quiet_connector) -> int:
    """Run the program; return 0, 1 if the request failed or a machine is not ready, or 130 after Ctrl-C."""
    arguments = parse(argv)
    console = Console(highlight=False, emoji=False)
    show = partial(console.print, markup=False, soft_wrap=True)
    try:
        return run_command(make(arguments.config), arguments, show)
    except NotDone as error:
        Console(stderr=True, highlight=False, emoji=False).print(str(error), style="red", markup=False, soft_wrap=True)
        return 1


def run_command(machines: SSHConnector, arguments: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Carry out the command line; return the exit code."""
    if arguments.command == "add":
        show(
            machines.add_worker(
                arguments.host, arguments.user, name=arguments.name, port=arguments.port, key_path=arguments.key_path
            )
        )
        return 0
    if arguments.command == "wheel":
        show(machines.write_wheel(arguments.folder))
        return 0
    names, at_once = arguments.names, arguments.at_once
    if arguments.command in DONE:
        return change_workers(machines, arguments.command, names, show, at_once=at_once)
    if arguments.command == "status" and (answer := machines.status_of_coach(names)) is not None:
        show(answer)
        return 0
    with machines.settings_read_once():
        return ask_machines(machines, arguments, show)


def ask_machines(machines: SSHConnector, arguments: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Carry out a command that changes no worker on the machines themselves; return the exit code."""
    names, at_once = arguments.names, arguments.at_once
    match arguments.command:
        case "check":
            machines.chosen(names)  # which refuses unknown ones
            print_status(f"checking the machines of {machines.config}")
            return show_findings(machines, show, names, at_once=at_once)
        case "status":
            return show_status(machines, show, names, at_once=at_once)
        case "bootstrap":
            events = machines.bootstrap_all(names, wheels=arguments.wheels, at_once=at_once)
            return show_outcomes(machines, names, events, show, done="ready")
        case "logs":
            events = machines.logs_of(names, lines=arguments.lines, at_once=at_once)
            return show_outcomes(machines, names, events, show, done="read")
        case _:
            events = machines.gather_logs(arguments.folder, names, megabytes=arguments.log_megabytes, at_once=at_once)
            return show_outcomes(machines, names, events, show, done="gathered")


def change_workers(
    machines: SSHConnector, command: str, names: Sequence[str], show: Callable[[str], None], *, at_once: int
) -> int:
    """Restart, stop, take over or remove each of several; return 1 unless all succeeded.

    Raises:
        NotDone: only one is meant, and it failed.
    """
    act = {
        "restart": machines.restart_worker,
        "stop": machines.stop_worker,
        "takeover": machines.take_over_worker,
        "remove": machines.remove_worker,
    }[command]
    meant = list(dict.fromkeys(member for name in names for member in machines.members(name)))
    if len(meant) == 1:
        show(act(meant[0]))
        return 0

    def attempt(name: str) -> Iterator[Outcome]:
        try:
            yield Outcome(name, True, act(name))
        except NotDone as error:
            yield Outcome(name, False, str(error))

    together = 1 if command == "remove" else at_once  # which rewrites one file
    succeeded: dict[str, bool] = {}
    for name, outcome in run_in_parallel(attempt, meant, at_once=together):
        succeeded[name] = outcome.ok
        show(f"{'✓' if outcome.ok else '✗'} {outcome.text}")
    return show_summary(show, meant, succeeded, done=DONE[command], failed="failed")


def show_outcomes(
    machines: SSHConnector,
    names: Sequence[str],
    events: Iterator[Progress | Outcome],
    show: Callable[[str], None],
    *,
    done: str,
) -> int:
    """Show what comes of a command on each machine as it happens, then a summary; return 1 unless all succeeded.

    Args:
        machines: the machines.
        names: which of them are meant.
        events: what comes.
        show: shows a line.
        done: what the machines are on which it succeeded.

    Raises:
        NotDone: only one machine is meant, and it failed there.
    """
    order = [chosen.machine.name for chosen in machines.chosen(names)]
    if not order:
        raise NotDone(f"{machines.config} lists no workers: {cluster('add HOST USER', machines.config)} adds one")
    if len(order) == 1:
        show(combine_results(events, show))
        return 0
    succeeded: dict[str, bool] = {}
    for event in events:
        if isinstance(event, Progress):
            show(f"{event.machine}: {event.text}")
            continue
        succeeded[event.machine] = event.ok
        show(f"{'✓' if event.ok else '✗'} {event.text}")
    return show_summary(show, order, succeeded, done=done, failed="failed")


def show_summary(
    show: Callable[[str], None], order: Sequence[str], succeeded: dict[str, bool], *, done: str, failed: str
) -> int:
    """Show on which machines a command succeeded and failed; return 1 if it failed on any."""
    show("")
    for what, ok in ((done, True), (failed, False)):
        names = [name for name in order if succeeded.get(name) is ok]
        if names:
            show(f"{what}{f' ({len(names)} of {len(order)})' if len(order) > MOST_IN_FULL else ''}: {', '.join(names)}")
    return 0 if all(succeeded.values()) else 1


def show_status(machines: SSHConnector, show: Callable[[str], None], names: Sequence[str], *, at_once: int) -> int:
    """Show what the machines say of their workers; return 1 if one does not answer."""
    machines.chosen(names)  # which refuses unknown ones
    show(machines.about_status())
    failed = 0
    for outcome in machines.status_of_machines(names, at_once=at_once):
        show(outcome.text)
        failed += not outcome.ok
    if failed:
        show(f"{failed} of {len(machines.chosen(names))} machines do not answer or cannot be asked")
    return 1 if failed else 0


def show_findings(
    machines: SSHConnector, show: Callable[[str], None], names: Sequence[str] = (), *, at_once: int = AT_ONCE
) -> int:
    """Show the findings on each machine, with remedies; return 1 unless all can play."""
    order = [chosen.machine.name for chosen in machines.chosen(names)]
    if not order:
        show(f"{machines.config} lists no workers: {cluster('add HOST USER', machines.config)} adds one")
        return 1
    ready, scans = dict[str, bool](), list[KeyScan]()
    for checked in machines.check(names, at_once=at_once):
        ready[checked.machine.name] = checked.ready
        scans += [checked.scan] if checked.scan else []
        show_checked(checked, show, in_full=len(order) <= MOST_IN_FULL)
    failed = show_summary(show, order, ready, done="ready", failed="not ready")
    if len(scans) > 1:
        show(f"if the {len(scans)} unknown host keys are genuine, this adds them all:")
        for command in scan_commands(scans):
            show(f"  {command}")
    return failed


def show_checked(checked: CheckedMachine, show: Callable[[str], None], *, in_full: bool) -> None:
    """Show the findings on one machine; unless ``in_full``, only those that are not as they should be."""
    heading = f"{checked.machine.name} ({checked.machine.host})"
    show(heading if in_full else f"{'✓' if checked.ready else '✗'} {heading}")
    for finding in checked.findings:
        if in_full or not finding.ok:
            sign = "✓" if finding.ok else "✗" if finding.fatal else "!"
            show(f"  {sign} {finding.what:9}  {finding.text}")
            if finding.remedy and not finding.ok:
                show(f"{'':14}-> {finding.remedy}")


if __name__ == "__main__":
    sys.exit(main())
