"""One thread per test process: two workers with two threads each would fight over two cores."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)
