"""The client's side: what it does with its images, and the one place where they turn into something shared."""

from leakscope.client import threats
from leakscope.client.fedsgd import FedSGD
from leakscope.client.observe import observe

__all__ = ["FedSGD", "observe", "threats"]
