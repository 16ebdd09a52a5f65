"""A linter for received models: what a malicious server would have planted in the weights."""

from leakscope.lint.finding import Finding
from leakscope.lint.linter import lint

__all__ = ["Finding", "lint"]
