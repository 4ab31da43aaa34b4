"""The network of the guide to 2048 under the name by which the guide's programs import it: see
``training/networks/zero_network.py``.
"""

from training.networks.zero_network import ZeroNetwork

__all__ = ["ZeroNetwork"]
