"""The network of the guide to 2048 under the name by which the guide's programs import it: see
``keima/networks/zero_network.py``.
"""

from keima.networks.zero_network import ZeroNetwork

__all__ = ["ZeroNetwork"]
