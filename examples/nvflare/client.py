"""What each client runs: one step of SGD on two photographs of its own, BatchNorm in train mode."""

import nvflare.client as flare
import torch
from net import Net
from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

import leakscope as ls

PHOTOGRAPHS = {"site-1": ["cat", "coffee"], "site-2": ["temple", "raccoon"]}


def main() -> None:
    torch.set_num_threads(1)
    flare.init()
    batch = ls.bundled_batch(PHOTOGRAPHS[flare.get_site_name()], size=16)
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()
        flare.send(FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    main()
