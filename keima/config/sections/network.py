"""The settings of the network."""

from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from keima.config.own_modules import NAME as OWN_NAME
from keima.config.own_modules import is_own
from keima.config.sections.game import with_own_name
from keima.config.sections.types import Line, Scalar, Section, as_tuple, matching

NetworkType = Annotated[
    str,
    matching(
        rf"resnet|bottleneck|spiking|{OWN_NAME.pattern}",
        "'resnet', 'bottleneck' or 'spiking', or a file at `module`",
    ),
]

GROWING_TYPES = ("resnet", "bottleneck")
MOST_BLOCKS, MOST_CHANNELS = 100, 2048


GrowthStep = Annotated[
    str,
    matching(
        r"[1-9][0-9]{0,2}x[1-9][0-9]{0,3}@0\.[0-9]{1,6}",
        "BLOCKSxCHANNELS@SHARE with a share of the run between 0 and 1, such as 4x32@0.3",
    ),
]


class NetworkSize(NamedTuple):
    """The size of a network from some share of its run on."""

    blocks: int
    channels: int
    share: float = 0.0


class NetworkSettings(Section):
    """The residual network (He et al. 2016, in AlphaZero's form) with optional global pooling (KataGo), the same with
    another tower, or its spiking form.
    """

    type: NetworkType = "resnet"
    """Residual network with policy and value heads; spiking: with spiking neurons; bottleneck: KataGo's nested blocks,
    without fused operators on the CPU.
    """
    module: Line | None = None
    """Instead of type: a Python file with a network of your own (docs/add_a_network.md)."""
    options: dict[str, Scalar] = {}
    """The options of that network, for which the other keys have no meaning."""
    blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] = 6
    """Residual blocks of the tower; time per position grows linearly."""
    channels: Annotated[int, Field(ge=4, le=MOST_CHANNELS)] = 64
    """Channels of the convolutions; time per position grows quadratically."""
    growth: Annotated[tuple[GrowthStep, ...], BeforeValidator(as_tuple)] = ()
    """Larger sizes from a share of the run on, such as [4x32@0.3, 4x48@0.6]; not for spiking. A small network plays
    more games at first, and a larger one begins with its knowledge (Net2Net, arXiv 1511.05641)."""
    global_pooling: bool = True
    """Give every point a summary of the whole board (KataGo)."""
    squeeze_excitation: bool = False
    """Scale the channels of blocks by the board's means; not for spiking."""
    time_steps: Annotated[int, Field(ge=1, le=64)] | None = None
    """Time steps of a spiking network; null: 4."""
    predict_reply: bool = False
    """Also learn the opponent's reply (KataGo); slows training slightly, play not at all."""
    predict_ownership: bool = False
    """Go and Connect Four: also learn who will own each point."""
    predict_score: bool = False
    """Go and Connect Four: also learn the final margin, in points or stones left."""
    predict_future: bool = False
    """Chess, Go, Connect Four ...: also learn where pieces will be some plies later."""

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any, info: ValidationInfo) -> Any:
        return with_own_name(given, "type", info)

    def arguments(self, steps: int = 0) -> dict[str, Any]:
        """Return the arguments of ``build_network``, which describe the network in model files.

        Args:
            steps: of its growth so far.
        """
        if is_own(self.type):
            return {"type": self.type, **self.options}
        size = {"blocks": self.sizes[steps].blocks, "channels": self.sizes[steps].channels}
        return self.model_dump(exclude={"module", "options", "growth"}) | size

    @property
    def sizes(self) -> tuple[NetworkSize, ...]:
        """The sizes that the network has during a run."""
        found = [NetworkSize(self.blocks, self.channels)]
        for step in self.growth:
            size, share = step.split("@")
            blocks, channels = map(int, size.split("x"))
            found.append(NetworkSize(blocks, channels, float(share)))
        return tuple(found)

    def count_growth_steps(self, progress: float) -> int:
        """Return how often the network has grown after this share of the run."""
        return sum(size.share <= progress for size in self.sizes[1:])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.options and not is_own(self.type):
            raise ValueError("options: only for a network of your own, which `module` names")
        self._check_growth()
        heads = [name for name in type(self).model_fields if name.startswith("predict_")]
        if is_own(self.type) and any(getattr(self, name) for name in heads):
            raise ValueError(f"{', '.join(heads)}: a network of your own has no such heads")
        if self.time_steps is not None and self.type != "spiking":
            raise ValueError(f"time_steps: only for networks of type spiking, and this one has type {self.type}")
        if self.squeeze_excitation and self.type == "spiking":
            raise ValueError(f"squeeze_excitation: a network of type {self.type} has no such blocks")
        return self

    def _check_growth(self) -> None:
        if self.growth and self.type not in GROWING_TYPES:
            raise ValueError(f"growth: only networks of type {' and '.join(GROWING_TYPES)} grow, and not {self.type}")
        if self.sizes[-1].blocks > MOST_BLOCKS or self.sizes[-1].channels > MOST_CHANNELS:
            raise ValueError(f"growth: a network has at most {MOST_BLOCKS} blocks and {MOST_CHANNELS} channels")
        for before, after in pairwise(self.sizes):
            is_larger = after.blocks >= before.blocks and after.channels >= before.channels and after[:2] != before[:2]
            if after.share <= before.share or not is_larger:
                raise ValueError(
                    f"growth: each step must be later and larger than the one before, but {after.blocks}x"
                    f"{after.channels}@{after.share:g} follows {before.blocks}x{before.channels}@{before.share:g}"
                )
