"""One thread per test process: two workers with two threads each would fight over two cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch
from hypothesis import settings

# Random cases are the same on every run and machine: a build must not fail by luck.
# `--hypothesis-profile=explore` draws new ones.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("fixed")

torch.set_num_threads(1)

LONG = (
    "report/test_demo.py",
    "audit/test_kill.py",
    "audit/test_ray.py",
    "capture/test_nvflare.py",
    "capture/test_flower_simulation.py",
)


def pytest_collection_modifyitems(items):
    """Long ones first: at the end one worker would wait for the other, or take half a module and its fixture again."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
