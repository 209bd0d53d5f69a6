"""One of two processes that train a model together, plain and recomputed."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from keras_remat import Recompute


def make_block():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="gelu"),
            layers.BatchNormalization(momentum=0.7),
            layers.Dropout(0.3, seed=3),
            layers.Dense(8),
        ]
    )


def train(wrap, rank):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8,)), wrap(make_block()), wrap(make_block()), keras.layers.Dense(2)]
    )
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    rng = np.random.RandomState(rank)  # each process has data of its own
    found = []
    for _ in range(3):
        x = torch.tensor(rng.randn(4, 8).astype("float32"))
        optimizer.zero_grad()
        loss = parallel(x, training=True).square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in parallel.parameters() if p.grad is not None)]
        optimizer.step()
    return [*found, *(v.value.detach().clone() for v in model.variables)]


def main():
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    plain, wrapped = train(lambda block: block, rank), train(Recompute, rank)
    assert len(plain) == len(wrapped)
    for one, other in zip(plain, wrapped):
        assert torch.equal(one, other)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
