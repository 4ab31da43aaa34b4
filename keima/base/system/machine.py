"""What kind of machine this is: its processor, the fastest instructions that it has, and its cores."""

import importlib.metadata
import os
import platform
from pathlib import Path

FEATURES = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}


def describe_machine() -> dict[str, str]:
    """Return the processor with its fastest instructions, its cores for this process, its load, and the versions."""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in _read_lines())}
    flags = facts.get("flags", "").split()
    return {
        "processor": facts.get("model name", platform.machine()),
        "with": next((name for flag, name in FEATURES.items() if flag in flags), "none of the known instructions"),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def _read_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
