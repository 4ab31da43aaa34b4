"""Rules of Go as KataGo's GTP extensions name them (its GTP_Extensions.md), and which of them Keima plays.

The network plays by area scoring and positional superko, with or without suicide. All its moves are also legal under
weaker ko rules. The rules to choose are whether players agree on dead stones, and White's points for Black's handicap.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from keima.play.gtp.syntax import GtpError

NO_BONUS, EACH_STONE, EACH_BUT_ONE = BONUSES = "0", "N", "N-1"
# Whether suicide is legal, whether dead stones are removed by agreement, and White's points for handicap stones.
NAMED_RULES = {
    "tromp-taylor": (True, False, NO_BONUS),
    "chinese": (False, True, EACH_STONE),
    "chinese-ogs": (False, True, EACH_STONE),
    "chinese-kgs": (False, True, EACH_STONE),
    "aga": (False, True, EACH_BUT_ONE),
    "bga": (False, True, EACH_BUT_ONE),
    "french": (False, True, EACH_BUT_ONE),
    "new-zealand": (True, True, NO_BONUS),
    "nz": (True, True, NO_BONUS),
}
# Names of rules that Keima does not play, with White's points for handicap stones.
NOT_PLAYED = {
    "japanese": NO_BONUS,
    "korean": NO_BONUS,
    "stone-scoring": NO_BONUS,
    "aga-button": EACH_BUT_ONE,
}
AS_PLAYED = "area scoring with positional superko, where players agree on dead stones"
OURS = {"scoring": ("AREA",), "ko": ("POSITIONAL", "SITUATIONAL", "SIMPLE"), "tax": ("NONE",), "hasButton": (False,)}


@dataclass(frozen=True, kw_only=True)
class GtpRules:
    """The rules of a game."""

    suicide: bool  # of several stones is legal; fixed by the network's game
    agree_on_dead: bool = False  # dead stones are removed by agreement; otherwise the board is counted as it is
    handicap_bonus: str = NO_BONUS  # White's points for Black's handicap: none, the number of its stones, or one less

    def text(self) -> str:
        """Return the rules as kata-get-rules prints them."""
        given = {
            "friendlyPassOk": self.agree_on_dead,
            "hasButton": False,
            "ko": "POSITIONAL",
            "scoring": "AREA",
            "suicide": self.suicide,
        }
        return json.dumps({**given, "tax": "NONE", "whiteHandicapBonus": self.handicap_bonus}, separators=(",", ":"))

    def white_points(self, handicap: int) -> int:
        """Return White's points in addition to the komi, for Black's handicap stones."""
        return {NO_BONUS: 0, EACH_STONE: handicap, EACH_BUT_ONE: max(handicap - 1, 0)}[self.handicap_bonus]


def parse_rules(words: Sequence[str], now: GtpRules) -> tuple[GtpRules, float | None]:
    """Parse the argument of kata-set-rules, a name or JSON; returns the rules, and the komi if it has one.

    What they leave out stays as it is.

    Raises:
        Refused: they are malformed, or not supported.
    """
    text = " ".join(words)
    if (name := _rules_name(text)) in NAMED_RULES:
        return _apply_rules(_named_rules(name), now), None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise GtpError(
            f"unknown rules {text[:80]!r}: there are {', '.join(NAMED_RULES)}, and rules as kata-get-rules prints them"
        )
    komi = given.pop("komi", None)
    if komi is not None and (isinstance(komi, bool) or not isinstance(komi, int | float)):
        raise GtpError(f"komi is a number, and not {komi!r}")
    return _apply_rules(given, now), komi


def find_nearest_rules(given: str | dict[str, Any], now: GtpRules) -> tuple[GtpRules, list[str]]:
    """Return the rules, a name or an object, as closely as Keima plays them; and what is different, if anything.

    Raises:
        GtpError: there are no rules of that name.
    """
    if isinstance(given, str):
        name = _rules_name(given)
        if name in NOT_PLAYED:
            nearest = replace(now, agree_on_dead=True, handicap_bonus=NOT_PLAYED[name])
            return nearest, [f"the rules {name} are not played here; it is analysed by {AS_PLAYED}"]
        if name not in NAMED_RULES:
            raise GtpError(f"unknown rules {given[:80]!r}: there are {', '.join((*NAMED_RULES, *NOT_PLAYED))}")
        given = _named_rules(name)
    different = list[str]()
    for key, value in given.items():
        try:
            now = _apply_rules({key: value}, now)
        except GtpError as error:
            different.append(str(error))
    return now, different


def _rules_name(text: str) -> str:
    """Return the name of rules as it is in the tables: programs also write spaces, underscores and capitals."""
    return text.strip().lower().replace(" ", "-").replace("_", "-")


def _named_rules(name: str) -> dict[str, Any]:
    suicide, agreed, bonus = NAMED_RULES[name]
    return {"suicide": suicide, "friendlyPassOk": agreed, "whiteHandicapBonus": bonus}


def _apply_rules(given: dict[str, Any], now: GtpRules) -> GtpRules:
    for key, value in given.items():
        known = {**OURS, "suicide": (True, False), "friendlyPassOk": (True, False), "whiteHandicapBonus": BONUSES}.get(
            key
        )
        if known is None:
            raise GtpError(f"unknown rule {key[:80]!r}")
        if not any(value is each or (isinstance(each, str) and value == each) for each in known):
            raise GtpError(f"{key} {value!r} is not played here: {' or '.join(json.dumps(each) for each in known)}")
    if now.suicide and given.get("suicide") is False:
        raise GtpError("this network has learned with suicide, and may play it")
    return replace(
        now,
        agree_on_dead=given.get("friendlyPassOk", now.agree_on_dead),
        handicap_bonus=given.get("whiteHandicapBonus", now.handicap_bonus),
    )
