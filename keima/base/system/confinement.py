"""Confinement: a process gives up the network, and all files but some, before it runs code that nobody here has read.

Three features of Linux do it, and none needs root or another program. A process cannot undo them, and its children
inherit them:

- *Landlock* limits files to the given folders, whoever owns the others (landlock(7); Linux 5.13, TCP from 6.7, signals
  from 6.12). Nobody can create links, sockets or pipes in those folders either: a program outside that reads them would
  follow a link to a file that it alone may read.
- A *filter of system calls* (seccomp(2)) refuses the rest. It denies all sockets but those between processes of this
  confinement: Landlock knows only TCP, and a desktop, Docker or systemd would act for whoever connects to its socket.
  It also denies what Landlock leaves open: changes of permissions, typing into the terminal, control of other
  processes, and io_uring, which bypasses the filter.
- *Capabilities* are dropped, for a process of root.

A network namespace would deny the network too. It needs a user namespace, which containers and many distributions
refuse to ordinary users, and it would not close the sockets that are files.

Imports only the standard library and ``keima.paths``. Where a feature is missing, the result says so; whoever calls
decides. Run as a program, it confines itself and writes what holds.

Sources: docs.kernel.org/userspace-api/landlock.html, and uapi/linux/{landlock,seccomp,filter,capability}.h.
"""

import ctypes
import errno
import json
import os
import platform
import stat
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from keima.paths import program_of, with_code_on_path

DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom"))
KNOWN_VERSION = 6  # of Landlock; later ones are used as this one

# Rights of Landlock, in the order of their bits, each with the version that has it first.
RIGHTS = {
    "execute": 1,
    "write_file": 1,
    "read_file": 1,
    "read_dir": 1,
    "remove_dir": 1,
    "remove_file": 1,
    "make_char": 1,
    "make_dir": 1,
    "make_reg": 1,
    "make_sock": 1,
    "make_fifo": 1,
    "make_block": 1,
    "make_sym": 1,
    "refer": 2,
    "truncate": 3,
    "ioctl_dev": 5,
}
TO_READ = ("execute", "read_file", "read_dir")
TO_WRITE = ("write_file", "remove_dir", "remove_file", "make_dir", "make_reg", "refer", "truncate", "ioctl_dev")
OF_FILES = ("execute", "write_file", "read_file", "truncate", "ioctl_dev")  # the others are of folders alone
TCP, TCP_VERSION = 0b11, 4  # bind and connect
OTHERS, OTHERS_VERSION = 0b11, 6  # abstract sockets and signals of processes outside
TRUNCATE_VERSION = 3
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, on every architecture
ASK_VERSION, BENEATH_PATH = 1, 1

NO_NEW_PRIVILEGES, SET_FILTER, FILTER_MODE = 38, 22, 2  # of prctl
CAPABILITY_VERSION = 0x20080522
DAC_OVERRIDE = 1 << 1  # root reaches files of other owners, as in a container; Landlock still holds

# System calls by architecture: the architecture's number, and those of the calls. 0: it has no such call.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_CALLS = 0x40000000  # calls of x86-64 with 32-bit pointers have numbers from here
DENIED = {
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "chmod": (90, 0),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, 0),
    "fchown": (93, 55),
    "lchown": (94, 0),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
IOCTL = (16, 29)
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX
# Landlock before its third version lets every file be emptied.
EMPTIES = {"truncate": (76, 45), "openat2": (437, 437)}
OPENS = (((2, 0), 1), ((257, 56), 2))  # open and openat: the calls, and which argument has the flags

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # instructions of a filter
CALL, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets of what a filter sees
ACCESS_MODE = 0b11  # of the flags of ``open``
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
UNIX, STREAM, SEQPACKET, KIND_OF_SOCKET = 1, 1, 5, 0xF

Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, value

WITHOUT_LANDLOCK = (
    "Landlock does not work here ({}): the game's code could read and change your other files, such as what your shell "
    "runs at the next login"
)
WITHOUT_FILTER = (
    "this system does not filter system calls ({}): the game's code could use the network, and have your other "
    "programs act for it"
)
WITHOUT_SIGNALS = "this system's Landlock is older than Linux 6.12: the game's code could end your other programs"
WITHOUT_DROP = "the game's code keeps the rights of root ({})"
WITH_THREADS = "this process had started threads before it could be confined: the game's code is not confined"


@dataclass(frozen=True)
class Confinement:
    """What holds for a process and its children, and what does not.

    Attributes:
        files: they write only where they may.
        reads: and they read only there.
        network: they reach no network, and no other program's socket.
        missing: sentences for the user about what this system cannot do.
    """

    files: bool
    reads: bool
    network: bool
    missing: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what holds, in words."""
        held = {
            "no network": self.network,
            "no writing outside its own folders": self.files,
            "no reading of your other files": self.reads,
        }
        return ", ".join(words for words, holds in held.items() if holds) or "not confined"


def confine_process(*, writable: Sequence[Path], readable: Sequence[Path] | None = None) -> Confinement:
    """Confine this process and all that it starts, for good. Call it before any thread starts.

    What is open stays usable. Folders are meant as they are now: one that is deleted and made again is another.

    Args:
        writable: the files and folders in which it may write; it reads them too. Devices such as /dev/null are added.
        readable: those that it may only read, as far as they exist; None: all of the system.

    Returns:
        What holds. A feature that is missing is no error.

    Raises:
        FileNotFoundError: something writable is missing. Nothing is confined.
    """
    for path in writable:
        path.stat()
    if sys.platform != "linux":
        reason = f"it is {platform.system()}"
        return Confinement(False, False, False, (WITHOUT_LANDLOCK.format(reason), WITHOUT_FILTER.format(reason)))
    if _count_threads() > 1:
        return Confinement(False, False, False, (WITH_THREADS,))
    system = ctypes.CDLL(None, use_errno=True)
    version = find_landlock_version(system)
    problem = "" if system.prctl(NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0 else _last_error()
    landlock = problem or _restrict_files(system, version, [*writable, *DEVICES], readable)
    rights = _drop_capabilities(system)
    calls = problem or _filter_calls(system, empties=0 < version < TRUNCATE_VERSION)
    missing = [
        WITHOUT_LANDLOCK.format(landlock) if landlock else "",
        WITHOUT_SIGNALS if not landlock and version < OTHERS_VERSION else "",
        WITHOUT_FILTER.format(calls) if calls else "",
        WITHOUT_DROP.format(rights) if rights else "",
    ]
    held = not (landlock or calls or rights)  # each closes a way around the others
    return Confinement(
        files=held,
        reads=held and readable is not None,
        network=not calls,
        missing=tuple(filter(None, missing)),
    )


def try_confinement() -> Confinement:
    """Return what would hold for a process here that reads and writes a few folders: another process tries it.

    Raises:
        OSError: no process can be started.
        subprocess.CalledProcessError: it failed.
    """
    program = program_of("keima.base.system.confinement")
    ended = subprocess.run(program, env=with_code_on_path(os.environ), stdout=subprocess.PIPE, check=True)
    held = json.loads(ended.stdout)
    return Confinement(**{**held, "missing": tuple(held["missing"])})


def find_landlock_version(system: ctypes.CDLL) -> int:
    """Return the version of Landlock's interface in this system; 0: it has none, or it is switched off."""
    return max(0, system.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(ASK_VERSION)))


def _count_threads() -> int:
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:  # there is no /proc
        return 1


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())


def _restrict_files(
    system: ctypes.CDLL, version: int, writable: Sequence[Path], readable: Sequence[Path] | None
) -> str:
    """Restrict files by Landlock; return why it cannot be done, or an empty text."""
    if not version:
        return "Linux has it from 5.13 on, unless it is switched off"
    handled = _rights(RIGHTS, version)
    network, others = (TCP if version >= TCP_VERSION else 0), (OTHERS if version >= OTHERS_VERSION else 0)
    attributes = struct.pack("=QQQ", handled, network, others)
    size = 8 * (1 + (version >= TCP_VERSION) + (version >= OTHERS_VERSION))
    ruleset = system.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    if ruleset < 0:
        return _last_error()
    try:
        places = [(path, TO_READ) for path in ([Path("/")] if readable is None else readable)]
        for path, names in [*places, *((path, TO_READ + TO_WRITE) for path in writable)]:
            if problem := _allow_beneath(system, ruleset, path, _rights(names, version)):
                return f"{path}: {problem}"
        return "" if system.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint(0)) == 0 else _last_error()
    finally:
        os.close(ruleset)


def _allow_beneath(system: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> str:
    """Allow these rights at and beneath a path that exists; return why it cannot be done, or an empty text."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is missing, or in a folder that this user may not enter
        return ""
    try:
        kept = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & _rights(OF_FILES, KNOWN_VERSION)
        rule = struct.pack("=Qi", kept, descriptor)
        added = system.syscall(ADD_RULE, ruleset, BENEATH_PATH, rule, ctypes.c_uint(0))
        return "" if added == 0 else _last_error()
    finally:
        os.close(descriptor)


def _rights(names: Sequence[str] | dict[str, int], version: int) -> int:
    """Return the bits of those rights that a version of Landlock has."""
    bits = {name: 1 << bit for bit, name in enumerate(RIGHTS)}
    return sum(bits[name] for name in names if RIGHTS[name] <= version)


def _drop_capabilities(system: ctypes.CDLL) -> str:
    """Give up what root may do beyond others, except to reach files; return why it cannot be done, or an empty text.

    A program that is started gets none back, as there are no new privileges.
    """
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)  # effective, permitted and inheritable, twice: the low and the high bits
    if system.capget(header, data) != 0:
        return _last_error()
    permitted = struct.unpack("=6I", data.raw)[1] & DAC_OVERRIDE
    kept = struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)
    return "" if system.capset(header, kept) == 0 else _last_error()


def _filter_calls(system: ctypes.CDLL, *, empties: bool) -> str:
    """Refuse system calls; return why it cannot be done, or an empty text."""
    machine = platform.machine()
    if machine not in ARCHITECTURES or sys.maxsize < 2**32:
        return f"no filter is known for {machine}, or this program is a 32-bit one"
    code = b"".join(struct.pack("=HBBI", *each) for each in call_filter(machine, empties=empties))
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    done = system.prctl(SET_FILTER, ctypes.c_ulong(FILTER_MODE), program, ctypes.c_ulong(0), ctypes.c_ulong(0))
    return "" if done == 0 else _last_error()


def call_filter(machine: str, *, empties: bool) -> list[Instruction]:
    """Return the filter of system calls, as a program of classic BPF.

    Args:
        machine: the architecture, one of ``ARCHITECTURES``.
        empties: whether to refuse to empty files by other ways than writing.
    """
    column = list(ARCHITECTURES).index(machine)
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, REFUSE),  # 32-bit programs have other numbers
        (LOAD, 0, 0, CALL),
    ]
    if machine == "x86_64":
        program += [(AT_LEAST, 0, 1, X32_CALLS), (RETURN, 0, 0, REFUSE)]
    denied = {**DENIED, **(EMPTIES if empties else {})}
    for numbers in denied.values():
        program += _on_call(numbers[column], [(RETURN, 0, 0, REFUSE)])
    for numbers in SOCKETS.values():
        program += _on_call(numbers[column], _allow_own_sockets())
    program += _on_call(IOCTL[column], _refuse_values(1, TERMINAL_INPUT))
    for numbers, flags in OPENS if empties else ():
        program += _on_call(numbers[column], _refuse_to_empty(flags))
    return [*program, (RETURN, 0, 0, ALLOW)]


def _on_call(number: int, block: list[Instruction]) -> list[Instruction]:
    """Return instructions that run the block, which must return, for one system call; 0: there is no such call."""
    return [(EQUAL, 0, len(block), number), *block] if number else []


def _load_argument(number: int) -> Instruction:
    """Load the low half of an argument: those of the filter's calls are of 32 bits, and the system ignores the rest."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * number)


def _allow_own_sockets() -> list[Instruction]:
    """Allow local sockets with connections: they reach nobody, since ``connect`` is refused. Datagrams need none."""
    return [
        _load_argument(0),
        (EQUAL, 0, 4, UNIX),
        _load_argument(1),
        (AND, 0, 0, KIND_OF_SOCKET),
        (EQUAL, 2, 0, STREAM),
        (EQUAL, 1, 0, SEQPACKET),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]


def _refuse_values(argument: int, values: Sequence[int]) -> list[Instruction]:
    checks = [(EQUAL, len(values) - number, 0, value) for number, value in enumerate(values)]
    return [_load_argument(argument), *checks, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]


def _refuse_to_empty(flags: int) -> list[Instruction]:
    """Refuse to open a file such that it is emptied, but not for writing, for which Landlock has a right."""
    return [
        _load_argument(flags),
        (ANY_BIT, 0, 4, os.O_TRUNC),
        (AND, 0, 0, ACCESS_MODE),
        (EQUAL, 2, 0, os.O_WRONLY),
        (EQUAL, 1, 0, os.O_RDWR),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(confine_process(writable=[], readable=[]))))
