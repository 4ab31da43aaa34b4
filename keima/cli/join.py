#!/usr/bin/env python3
"""Join a run on somebody else's machine: this machine plays games for it, over the internet, at the lowest priority.

    keima join 'https://host:8443/#...'        by the link that you were given (quote it)
    keima join                                 join the last run again, with the same name
    keima join LINK --cores 2 --name anna      with two cores, under this name in the public table
    keima join LINK --quiet-hours 'mon-fri 09:00-18:00' --until 23:00
    keima join LINK --systemd                  print a unit that joins whenever this machine runs

It pauses on battery, and while other programs need the processor. Ctrl-C ends it: the workers hand in their finished
games. What cannot be handed in stays here and is handed in the next time. Shipped games run as they are. A game of the
other person's own is their Python code: its name, size and hash are shown, and it runs only if you allow it, without
network and without write access to your files where this system can do that.
"""

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

import argparse
import getpass
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, handle_interrupts, stop_on_signals
from keima.base.system.start import parse_before_imports
from keima.config.flags import number, whole
from keima.config.quiet_hours import parse_quiet_hours

KEY_BYTES = 32
CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
ENDED, REFUSED, UNREACHABLE = 0, 2, 75  # the last as sysexits.h has it: it may pass
MOST_CORES, MOST_NAME = 256, 60
STAY_HOURS = 24.0
ASK_SECONDS, STEP_SECONDS = 30.0, 0.25  # while it waits for a run: between two questions, and at most until Ctrl-C
LAST = "last"  # in the folder: which run was joined last


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = CommandLine(__doc__)
    add = parser.add_argument
    add("link", nargs="?", metavar="LINK", help="the link that you were given (default: that of the last run here)")
    add(
        "--cores",
        type=whole(1, MOST_CORES),
        metavar="N",
        help="cores that play, each with a worker (default: all but one)",
    )
    add(
        "--gpus",
        type=whole(0),
        nargs="*",
        default=[],
        metavar="N",
        help="GPUs that play too, as nvidia-smi counts them",
    )
    add("--name", type=table_name, help="your name in the public table (default: asked for the first time)")
    add("--trust", action="store_true", help="run the run's own Python code without asking")
    add(
        "--update",
        action="store_true",
        help="run the run's version of Keima without asking, if it differs from this one",
    )
    add("--quiet-hours", type=quiet_hours, default="", metavar="HOURS", help="do not play then, such as 22:00-07:00")
    add("--until", type=end_time, metavar="TIME", help="stop then: 23:00, or a number of hours such as 8h")
    stay = f"hours to wait for a run that has stopped to go on (default: {STAY_HOURS:g}; 0: end with the run)"
    add("--stay", type=number(least=0, most=10_000), default=STAY_HOURS, metavar="HOURS", help=stay)
    add("--on-battery", action="store_true", help="also play on battery")
    add("--beside-work", action="store_true", help="also play while other programs need the processor")
    add("--systemd", action="store_true", help="print a systemd unit that does the same, and exit")
    add("--folder", type=Path, help="folder for games and models (default: join in your data folder)")
    return parser.parse_args(argv)


def table_name(text: str) -> str:
    """Check a name for the public table."""
    if not 1 <= len(text.strip()) <= MOST_NAME:
        raise argparse.ArgumentTypeError(f"expected a name of up to {MOST_NAME} characters")
    return text.strip()


def quiet_hours(text: str) -> str:
    """Check quiet hours."""
    try:
        parse_quiet_hours(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def end_time(text: str) -> datetime:
    """Parse when to stop."""
    now = datetime.now()
    if found := CLOCK.fullmatch(text):
        end = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
        return end if end > now else end + timedelta(days=1)
    try:
        hours = float(text.removesuffix("h"))
        return now + timedelta(hours=hours) if 0 < hours < 10_000 else _refuse_end(text)
    except ValueError:
        return _refuse_end(text)


def _refuse_end(text: str) -> datetime:
    raise argparse.ArgumentTypeError(f"expected a time such as 23:00, or hours such as 8h, found {text!r}")


def check_inputs(arguments: argparse.Namespace) -> None:
    """Check that there is a link, and that the flags fit together.

    Raises:
        ValueError: there is none, or they do not.
    """
    arguments.folder = arguments.folder or default_folder()
    if arguments.systemd and arguments.until:
        raise ValueError("a unit starts again what --until has ended: give --quiet-hours instead")
    if not arguments.link and not (arguments.folder / LAST).is_file():
        raise ValueError(f"{arguments.folder} remembers no run: give the link that you were given")


def default_folder() -> Path:
    """Return the folder for all runs that this user joins."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "keima" / "join"


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)

from keima import __version__
from keima.base.run_lock import RunLock, RunLocked
from keima.base.system.confinement import try_confinement
from keima.base.system.machine import describe_machine
from keima.base.system.priority import run_at_low_priority
from keima.cluster.http.client import DoorClient, DoorRefused, DoorUnreachable, WrongServer
from keima.cluster.http.conditions import Conditions
from keima.cluster.http.joining import REFUSED as REFUSED_FOR_GOOD
from keima.cluster.http.joining import (
    STATE,
    CannotJoin,
    JoinedMachine,
    Membership,
    RunChanged,
    find_code,
    read_membership,
    unpack_code,
    write_membership,
)
from keima.cluster.http.protocol import Registration, RunFacts, WrongLink, parse_link
from keima.cluster.machines.release import worker_code_hash
from keima.config.own_modules import keep_source
from keima.worker.worker_folder import run_tag


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0, 130 after Ctrl-C, or 2 if this machine cannot join."""
    arguments = parse(argv)
    say = partial(print, flush=True)
    try:
        return join(arguments, say=say)
    except DoorUnreachable as error:
        print(f"{program_name()}: {error}; try again later", file=sys.stderr)
        return UNREACHABLE
    except RunLocked:
        print(
            f"{program_name()}: another keima join plays for this run here; --folder gives a second one",
            file=sys.stderr,
        )
        return REFUSED
    except (CannotJoin, WrongLink, WrongServer, DoorRefused, ValueError, OSError) as error:
        print(f"{program_name()}: {error}", file=sys.stderr)
        return REFUSED


def join(arguments: argparse.Namespace, *, say: Callable[[str], None]) -> int:
    """Join the run of a link, and play until it ends; if it goes on later, play again."""
    check_inputs(arguments)
    home = arguments.folder
    text = arguments.link or read_last_link(home)
    link = parse_link(text)
    if arguments.systemd:
        say(systemd_unit(arguments, text))
        return ENDED
    key = find_key(home, text)
    with DoorClient(link, key=key) as door:
        facts = door.read_run()
    folder = home / run_tag(facts.run_id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_first = True
    with RunLock(folder):
        while True:
            say(f"run {facts.run}: {facts.game}; Keima {facts.version}")
            with DoorClient(link, key=key) as door:
                membership, code_folder = become_member(arguments, text, facts, door, folder, say=say)
            key = membership.key
            (home / LAST).write_text(folder.name, encoding="utf-8")
            if is_first:
                run_at_low_priority()  # only now: a user who is there answers before it
                is_first = False
            result = play(arguments, facts, membership, folder, code_folder, say=say)
            if isinstance(result, int):
                return result
            facts = result


def become_member(
    arguments: argparse.Namespace,
    link: str,
    facts: RunFacts,
    door: DoorClient,
    folder: Path,
    *,
    say: Callable[[str], None],
) -> tuple[Membership, Path | None]:
    """Register this machine; return what it remembers, and the folder of the run's own code, if that differs.

    Raises:
        CannotJoin: the user does not allow the run's code.
        DoorRefused, DoorUnreachable, OSError: it could not be done.
    """
    known = read_membership(folder)
    trusted = ask_to_trust(facts, known, trust=arguments.trust, say=say)
    code_folder = choose_code(facts, door, folder, update=arguments.update, say=say)
    for module in facts.modules:
        keep_source(module.name, door.fetch_module(module.name))
    name = arguments.name or (known.name if known else ask_for_name())
    key = known.key if known else secrets.token_urlsafe(KEY_BYTES)
    membership = Membership(link=link, key=key, name=name, trusted=trusted)
    write_membership(folder, membership)  # before the door knows the key: an answer may be lost
    cores = arguments.cores or min(max(1, count_usable_cores() - 1), MOST_CORES - len(arguments.gpus))
    count = cores + len(arguments.gpus)
    processor = str(describe_machine()["processor"])[:200]
    registered = door.register(Registration(name=name, workers=count, key=key, processor=processor))
    membership = replace(membership, workers=registered.workers)
    write_membership(folder, membership)
    return membership, code_folder


def play(
    arguments: argparse.Namespace,
    facts: RunFacts,
    membership: Membership,
    folder: Path,
    code_folder: Path | None,
    *,
    say: Callable[[str], None],
) -> int | RunFacts:
    """Play until the run ends, the time is up or Ctrl-C; return the exit code, or the run that goes on again."""
    machine = JoinedMachine(
        DoorClient(membership.parsed_link, key=membership.key),
        membership,
        folder,
        run_id=facts.run_id,
        code=facts.code,
        code_folder=code_folder,
        gpus=arguments.gpus,
        modules={module.name: module.sha256 for module in facts.modules},
        conditions=Conditions(
            quiet_hours=arguments.quiet_hours, on_battery=arguments.on_battery, beside_work=arguments.beside_work
        ),
        say=lambda line: say(f"{datetime.now():%H:%M:%S} {line}"),
    )
    count, end = len(membership.workers), arguments.until
    workers = f"{count} worker{'s' if count > 1 else ''}"
    say(f"{membership.name} plays with {workers} at the lowest priority; Ctrl-C hands in the finished games and ends")

    def is_time_up() -> bool:
        return end is not None and datetime.now() >= end

    with stop_on_signals(machine):
        try:
            over = machine.run(until=is_time_up)
        except RunChanged as error:
            if not (machine.stop_requested or is_time_up()):
                say(f"{error}, and this machine joins again")
                changed = read_changed_run(facts, membership)
                if not machine.stop_requested:
                    return changed
            return INTERRUPTED if machine.stop_requested else ENDED
        stays = over and arguments.stay and not machine.stop_requested
        if stays and (again := wait_for_run(facts, membership, machine, arguments.stay, until=end, say=say)):
            return again
    left = machine.games_left
    say(f"{machine.games:,} games handed in" + (f"; {left:,} are handed in the next time" if left and not over else ""))
    say("the run has ended: thank you" if over else f"{program_name()} joins again")
    return INTERRUPTED if machine.stop_requested else ENDED


def read_run(membership: Membership) -> RunFacts:
    """Return what the run of a membership plays.

    Raises:
        DoorRefused, DoorUnreachable, WrongServer: it does not answer.
    """
    with DoorClient(membership.parsed_link, key=membership.key) as door:
        return door.read_run()


def read_changed_run(facts: RunFacts, membership: Membership) -> RunFacts:
    """Return what the run that ``facts`` were about needs now.

    Raises:
        CannotJoin: it says the same as before.
        DoorRefused, DoorUnreachable, WrongServer: it does not answer.
    """
    found = read_run(membership)
    if found == facts:
        raise CannotJoin("the run refuses the code that it announces: start keima join again later")
    return found


def wait_for_run(
    facts: RunFacts,
    membership: Membership,
    machine: JoinedMachine,
    hours: float,
    *,
    until: datetime | None,
    say: Callable[[str], None],
) -> RunFacts | None:
    """Wait for a run that has stopped to go on; return None if it does not, or the user stops this.

    Raises:
        DoorRefused: it does not let this machine in any more.
    """
    end = min(datetime.now() + timedelta(hours=hours), until or datetime.max)
    say(f"the run has stopped; this machine waits until {end:%Y-%m-%d %H:%M} for it to go on, and Ctrl-C ends")
    ask_at = time.monotonic() + ASK_SECONDS
    while not machine.stop_requested and datetime.now() < end:
        time.sleep(STEP_SECONDS)
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + ASK_SECONDS
            try:
                found = read_run(membership)
                if found.run_id == facts.run_id:
                    return found
            except DoorRefused as error:
                if error.status in REFUSED_FOR_GOOD:  # a proxy says anything else while there is no run behind it
                    raise
            except (DoorUnreachable, WrongServer):
                pass
    return None


def find_key(home: Path, link: str) -> str:
    """Return this machine's key where it has come by this link; empty if it has not."""
    known = (read_membership(path.parent) for path in sorted(home.glob(f"*/{STATE}")))
    return next((membership.key for membership in known if membership and membership.link == link), "")


def read_last_link(home: Path) -> str:
    """Return the link of the run that was joined last.

    Raises:
        ValueError: what was remembered of it is gone.
        OSError: it cannot be read.
    """
    known = read_membership(home / (home / LAST).read_text(encoding="utf-8").strip())
    if known is None:
        raise ValueError(f"{home} does not remember the last run: give the link")
    return known.link


def ask_for_name() -> str:
    """Return the name for the public table: the user's answer, or the login name where nobody can answer."""
    try:
        login = getpass.getuser()
    except (OSError, KeyError):
        login = "somebody"
    if not sys.stdin.isatty():
        return login
    return input(f"your name in the public table [{login}]: ").strip()[:60] or login


def ask_to_trust(
    facts: RunFacts, known: Membership | None, *, trust: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the hashes of code that the user allows; all that the run needs now is among them.

    Raises:
        CannotJoin: the user does not allow it.
    """
    before = known.trusted if known else ()
    new = [module for module in facts.modules if module.sha256 not in before]
    for module in new:
        say(f"this game is Python code of the person who runs the run: {module.name}, {module.bytes:,} bytes")
        say(f"  SHA-256 {module.sha256}")
    if new:
        held = try_confinement()
        say(f"  as far as this system can, it runs confined: {held.describe()}")
        for missing in held.missing:
            say(f"  {missing}")
    if new and not trust and not answers_yes("run it?"):
        raise CannotJoin("the code is not run; --trust allows it without a question")
    return (*before, *(module.sha256 for module in new))


def choose_code(
    facts: RunFacts, client: DoorClient, folder: Path, *, update: bool, say: Callable[[str], None]
) -> Path | None:
    """Return the folder of the code that workers run; None: this installation has the same.

    Raises:
        CannotJoin: it is another one, and the user does not allow it.
    """
    if facts.code == worker_code_hash():
        return None
    if found := find_code(folder, facts.code):
        return found
    say(f"the run has another version of Keima's code than this machine ({facts.version}, here {__version__})")
    say(f"  code {facts.code}, SHA-256 of the wheel {facts.wheel_sha256}")
    if not update and not answers_yes("fetch and run it? It comes from the person who runs the run"):
        raise CannotJoin(
            f"the run needs its own version of Keima: install {facts.version}, or allow its code with --update"
        )
    return unpack_code(folder, facts, client.fetch_wheel())


def answers_yes(question: str) -> bool:
    """Return whether the user says yes; False where nobody can answer."""
    if not sys.stdin.isatty():
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def systemd_unit(arguments: argparse.Namespace, link: str) -> str:
    """Return a unit for ``systemctl --user`` that joins whenever this machine runs."""
    words = [sys.executable, "-m", "keima", "join", link]
    words += ["--cores", str(arguments.cores)] if arguments.cores else []
    words += ["--gpus", *map(str, arguments.gpus)] if arguments.gpus else []
    words += ["--name", arguments.name] if arguments.name else []
    words += ["--quiet-hours", arguments.quiet_hours] if arguments.quiet_hours else []
    words += ["--stay", f"{arguments.stay:g}"] if arguments.stay != STAY_HOURS else []
    words += ["--folder", str(arguments.folder.absolute())] if arguments.folder != default_folder() else []
    flags = {"--trust": "trust", "--update": "update", "--on-battery": "on_battery", "--beside-work": "beside_work"}
    words += [flag for flag, name in flags.items() if getattr(arguments, name)]
    line = " ".join(shlex.quote(word).replace("%", "%%") for word in words)
    return f"""# ~/.config/systemd/user/keima-join.service; then: systemctl --user enable --now keima-join
[Unit]
Description=Play games for a Keima run
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={line}
Restart=always
RestartSec=300
RestartPreventExitStatus={REFUSED}
KillSignal=SIGINT
TimeoutStopSec=90
Nice=19

[Install]
WantedBy=default.target"""


if __name__ == "__main__":
    sys.exit(main())
