"""Print what makes a shell complete the words of keima: verbs, flags, and files.

eval "$(keima completion bash)"                              in ~/.bashrc
eval "$(keima completion zsh)"                               in ~/.zshrc
keima completion fish > ~/.config/fish/completions/keima.fish
"""

import sys
from collections.abc import Sequence

from keima.base.system.command_line import CommandLine

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the shell's code."""
    parser = CommandLine(__doc__)
    parser.add_argument("shell", choices=SHELLS, help="your shell")
    arguments = parser.parse_args(argv)
    from argcomplete.shell_integration import shellcode  # only now: --help needs nothing of it

    print(shellcode(["keima"], shell=arguments.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
