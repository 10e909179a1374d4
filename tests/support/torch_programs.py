"""Programs that train and infer with the real PyTorch, to be recorded."""

from __future__ import annotations

#: A model, a batch and a loss, with which most of the programs begin.
MODEL = """
import os
import sys
import threading
import time
import torch
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
torch.set_num_threads(1)


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def loss_of(model):
    inputs = torch.randn(32, 64)
    labels = torch.randint(0, 10, (32,))
    return cross_entropy(model(inputs), labels)


def train_step(model, optimizer):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train(count, after_step=lambda number: None):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(count):
        loss = train_step(model, optimizer)
        after_step(number)
    return loss.item()


def infer(count, after_call=lambda number: None):
    model = make_model().eval()
    with torch.no_grad():
        for number in range(count):
            result = model(torch.randn(32, 64))
            after_call(number)
    return result.sum().item()

"""

TRAINING = MODEL + "print(train(int(sys.argv[1])))\n"

INFERENCE = MODEL + "print(infer(int(sys.argv[1])))\n"

ACCUMULATION = (
    MODEL
    + """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(80):
    (loss_of(model) / 4).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
)

ACCELERATE = (
    MODEL
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
for number in range(80):
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""
)

#: A rank of data-parallel training.
DISTRIBUTED = (
    MODEL
    + """
import torch.distributed

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    train_step(model, optimizer)
torch.distributed.destroy_process_group()
"""
)

DATA_LOADING = (
    MODEL
    + """
class Batches(torch.utils.data.Dataset):
    def __init__(self):
        self.model = make_model()

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with torch.no_grad():
            for _ in range(20):
                self.model(torch.randn(1, 64))
        return torch.randn(64), torch.tensor(index % 10)


if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Batches(), batch_size=2, num_workers=2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in loader:
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)
