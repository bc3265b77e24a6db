"""A small transformer, trained with torch's layers and with ours: the same loss, and what a step takes.

    python examples/transformer.py [--steps 50] [--compile]

It learns to continue sequences in which every token follows from the two before it. Without a GPU it is trained in f32;
on one, in bfloat16 by autocast. How far two curves may be apart is not guessed: a third model is trained in float64 on
the CPU, and torch's own curve is as far from that one as roundings make it.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import tilewave

TOKENS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 64, 4, 4, 32, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.into(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention, self.second = nn.RMSNorm(WIDTH), Attention(), nn.RMSNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.layers(x)))


def sequences(batch, seed):
    """Each token is the sum of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randint(TOKENS, (batch,), generator=generator) for _ in range(2)]
    while len(found) < LENGTH + 1:
        found.append((found[-1] + found[-2]) % TOKENS)
    return torch.stack(found, 1)


def fresh(device, dtype=torch.float32):
    torch.manual_seed(0)
    return Transformer().to(device, dtype)


def train(model, steps, run=None):
    """The loss of every step, and milliseconds of one, warm."""
    run, device = run or model, next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, times = [], []
    for step in range(steps):
        data, start = sequences(BATCH, step).to(device), time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = run(data[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    return torch.tensor(losses), 1000 * sorted(times)[len(times) // 2]


def apart(one, other):
    return (one - other).abs().max().item()


def main(steps=50, compiles=False):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact, _ = train(fresh("cpu", torch.float64), steps)
    torchs, milliseconds = train(fresh(device), steps)
    roundings = apart(torchs, exact)
    rows = [("torch", torchs, milliseconds)]
    model = fresh(device)
    print(tilewave.torch.patch(model), "\n")
    rows.append(("tilewave", *train(model, steps)))
    if compiles:
        model = fresh(device)
        tilewave.torch.patch(model)
        rows.append(("tilewave, compiled", *train(model, steps, torch.compile(model, fullgraph=True))))
    print(f"{'':20}{'first loss':>12}{'last loss':>12}{'from f64':>12}{'ms a step':>12}")
    for name, losses, milliseconds in rows:
        first, last, off = losses[0].item(), losses[-1].item(), apart(losses, exact)
        print(f"{name:20}{first:12.4f}{last:12.4f}{off:12.1e}{milliseconds:12.1f}")
        assert off <= 8 * roundings, f"{name} is {off} from float64, torch {roundings}"
    assert torchs[-1] < torchs[0] / 1.2, "nothing was learnt"
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--compile", action="store_true", dest="compiles", help="train a compiled model as well")
    given = parser.parse_args()
    main(given.steps, given.compiles)
