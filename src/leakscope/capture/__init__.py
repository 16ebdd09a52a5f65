"""Updates from real federations: recorded as they crossed the wire, checked, and turned into observations."""

from leakscope.capture.checks import CheckReport, check
from leakscope.capture.observation import to_observation
from leakscope.capture.states import update_from_files, update_from_states
from leakscope.capture.update import Update, load_update, save_update

__all__ = [
    "CheckReport",
    "Update",
    "check",
    "load_update",
    "save_update",
    "to_observation",
    "update_from_files",
    "update_from_states",
]
