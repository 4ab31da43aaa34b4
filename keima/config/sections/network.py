"""The settings of the network."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, model_validator

from keima.config.own_modules import NAME as OWN_NAME
from keima.config.own_modules import is_own
from keima.config.sections.game import with_own_name
from keima.config.sections.types import Line, Scalar, Section, matching

NetworkType = Annotated[
    str,
    matching(
        rf"resnet|bottleneck|spiking|{OWN_NAME.pattern}",
        "'resnet', 'bottleneck' or 'spiking', or a file at `module`",
    ),
]


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
    blocks: Annotated[int, Field(ge=1, le=100)] = 6
    """Residual blocks of the tower; time per position grows linearly."""
    channels: Annotated[int, Field(ge=4, le=2048)] = 64
    """Channels of the convolutions; time per position grows quadratically."""
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

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``build_network``, which describe the network in model files."""
        if is_own(self.type):
            return {"type": self.type, **self.options}
        return self.model_dump(exclude={"module", "options"})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.options and not is_own(self.type):
            raise ValueError("options: only for a network of your own, which `module` names")
        heads = [name for name in type(self).model_fields if name.startswith("predict_")]
        if is_own(self.type) and any(getattr(self, name) for name in heads):
            raise ValueError(f"{', '.join(heads)}: a network of your own has no such heads")
        if self.time_steps is not None and self.type != "spiking":
            raise ValueError(f"time_steps: only for networks of type spiking, and this one has type {self.type}")
        if self.squeeze_excitation and self.type == "spiking":
            raise ValueError(f"squeeze_excitation: a network of type {self.type} has no such blocks")
        return self
