"""Ranges of hosts: ``node[01-40].lab`` stands for forty machines."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

MOST_HOSTS = 1000  # in one text
EXAMPLE = "such as node[01-40].lab or node[1-3,7].lab"
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def hosts_of(text: str) -> tuple[str, ...]:
    """Return the hosts that ``text`` stands for, in its order; numbers keep the leading zeros of a range's first
    number.

    Raises:
        ValueError: a range is empty, runs backwards or is not a range, a host comes twice, or there are too many hosts.
    """
    pieces = BRACKETS.split(text)  # text, the content of brackets, text ...
    fixed, ranges = pieces[::2], [_parse_spans(each, text) for each in pieces[1::2]]
    if any(sign in "".join(fixed) for sign in "[]"):
        raise ValueError(f"expected hosts {EXAMPLE}, found {text!r}")
    count = math.prod(sum(map(len, spans)) for spans, _ in ranges)
    if count > MOST_HOSTS:
        raise ValueError(f"{text} stands for {count:,} hosts, and at most {MOST_HOSTS:,} are allowed")
    numbers = [_format_numbers(spans, widths) for spans, widths in ranges]
    hosts = [
        fixed[0] + "".join(number + after for number, after in zip(each, fixed[1:], strict=True))
        for each in itertools.product(*numbers)
    ]
    twice = [host for host, times in Counter(hosts).items() if times > 1]
    if twice:
        raise ValueError(f"{text} has {twice[0]} twice")
    return tuple(hosts)


def without_host(text: str, host: str) -> str | None:
    """Return ``text`` without one of its hosts; None if there is no way to write that."""
    left = [each for each in hosts_of(text) if each != host]
    pieces = BRACKETS.split(text)
    if len(pieces) != 3 or not left:
        return None
    before, _, after = pieces
    numbers = [each[len(before) : len(each) - len(after)] for each in left]
    shorter = f"{before}[{','.join(_join_spans(numbers))}]{after}"
    return shorter if hosts_of(shorter) == tuple(left) else None


def _parse_spans(content: str, text: str) -> tuple[list[range], list[int]]:
    """Return the numbers in brackets, and for each span how many digits its numbers have at least."""
    spans, widths = list[range](), list[int]()
    for part in content.split(","):
        found = SPAN.fullmatch(part.strip())
        if not found:
            raise ValueError(f"expected a range of hosts {EXAMPLE}, found [{content}] in {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"the range {part.strip()} in {text} runs backwards")
        spans.append(range(first, last + 1))
        widths.append(len(found[1]) if found[1].startswith("0") else 1)
    return spans, widths


def _format_numbers(spans: Sequence[range], widths: Sequence[int]) -> list[str]:
    return [str(number).zfill(width) for span, width in zip(spans, widths, strict=True) for number in span]


def _join_spans(numbers: Sequence[str]) -> list[str]:
    """Return numbers as the shortest list of spans: 01, 02, 03, 07 becomes 01-03, 07."""
    spans: list[list[str]] = []
    for number in numbers:
        if spans and number == str(int(spans[-1][-1]) + 1).zfill(len(spans[-1][0])):
            spans[-1].append(number)
        else:
            spans.append([number])
    return [each[0] if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in spans]
