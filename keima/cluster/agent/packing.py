"""Our program for workers' machines, this folder and what it uses: packed into one file, put there, and launched."""

import functools
import hashlib
import io
import zipfile

from keima.cluster.ssh.transport import Transport
from keima.paths import PACKAGE

PYTHON = "python3"  # of a machine for which the config names none
PYTHONS = (PYTHON, *(f"python3.{minor}" for minor in range(14, 10, -1)))  # as make_environment.sh looks for them
VENV_PYTHON = ".venv/bin/python"  # of a clone, and of earlier versions
MODULES = ("__init__", "program", "commands", "code", "inspection", "poll", "owner", "process", "serve")
REMOTE_PROGRAM = ("base/reports/text.py", "base/system/limits.py", *(f"cluster/agent/{name}.py" for name in MODULES))
EMPTY_PACKAGES = (
    "keima",
    "keima/cluster",
    "keima/base",
    "keima/base/reports",
    "keima/base/system",
)  # their own may need a newer Python
MAIN = "import sys\n\nfrom keima.cluster.agent.program import main\n\nsys.exit(main(sys.argv[1:]))\n"

# One line in plain POSIX shell, since the user's shell may be any. The first interpreter that is new enough runs
# the program.
LAUNCH = (
    "program=$1; nonce=$2; command=$3; request=$4; shift 4; "
    'say() { echo "@@$nonce {\\"failed\\": \\"${2:-$1}\\", \\"kind\\": \\"$1\\"}"; exit 0; }; '
    'system=$(uname -s 2>/dev/null); case $system in Linux|"") ;; *) say system "$system";; esac; '
    '[ -f "$program" ] || say absent; '
    'for python in "$@"; do case $python in "~/"*) python=$HOME/${python#"~/"};; esac; '
    'if "$python" -c "import sys; sys.exit(sys.version_info < (3, 9))" </dev/null >/dev/null 2>&1; '
    'then exec "$python" -I "$program" "$nonce" "$command" "$request"; fi; done; say pythonless'
)


def install_remote_program(transport: Transport) -> str:
    """Put our program on the machine unless it is there; return its name."""
    program, name = remote_program()
    folder, _, file = name.rpartition("/")
    if file not in {entry.name for entry in transport.list_files(folder)}:
        transport.put(program, name)
    return name


@functools.cache
def remote_program() -> tuple[bytes, str]:
    """Return the remote program as one file that Python runs, and its name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # not compressed: a bare Python may lack zlib
        for name in REMOTE_PROGRAM:
            archive.writestr(zipfile.ZipInfo(f"keima/{name}"), (PACKAGE / name).read_bytes())
        for package in EMPTY_PACKAGES:
            archive.writestr(zipfile.ZipInfo(f"{package}/__init__.py"), b"")
        archive.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
    content = packed.getvalue()
    return content, f".remote/{hashlib.sha256(content).hexdigest()[:16]}.pyz"


def launch_command(nonce: str, command: str, request: str, *, python: str) -> list[str]:
    """Return the command line that carries out a command there, with the first interpreter that is new enough."""
    interpreters = dict.fromkeys([python, *PYTHONS, VENV_PYTHON])
    return ["sh", "-c", LAUNCH, "keima", remote_program()[1], nonce, command, request, *interpreters]
