"""A gate on the client: attack an update before it is sent, and keep it back if the client's own images come out."""

from leakscope.gate.decide import Decision, Policy, Reason, gate

__all__ = ["Decision", "Policy", "Reason", "gate"]
