"""The types of settings, and the base of all sections."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Auto = Literal["auto"]


def matching(pattern: str, description: str) -> AfterValidator:
    """Return a validator of text that matches ``pattern``; its error describes the text in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {description}, found {text!r}")
        return text

    return AfterValidator(check)


def as_tuple(value: Any) -> Any:
    """Return a list of YAML as a tuple, which frozen settings need."""
    return tuple(value) if isinstance(value, list) else value


Count = Annotated[int, Field(ge=1)]


CountOrZero = Annotated[int, Field(ge=0)]


Share = Annotated[float, Field(ge=0, le=1)]


Positive = Annotated[float, Field(gt=0)]


NotNegative = Annotated[float, Field(ge=0)]


Scalar = bool | int | float | str


Line = Annotated[str, Field(max_length=4096), matching(r"[^\x00-\x1f\x7f]+", "one line of text")]


Name = Annotated[
    str,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "up to 64 letters, digits, '.', '_', '-', starting with a letter or digit"
    ),
]


Device = Annotated[str, matching(r"auto|cpu|cuda(:[0-9]{1,3})?", "auto, cpu, cuda or a GPU such as cuda:1")]


MOST_NAMED = 12  # names in one message


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words; of many, only the first."""
    more = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])} and {more} more" if more > 0 else ", ".join(names) or "none"


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, strict types ("3" is not 3)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
