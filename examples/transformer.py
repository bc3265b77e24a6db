"""A small transformer, trained with torch's layers and with ours: the same loss, and what a step takes.

    python examples/transformer.py [--steps 50] [--compile] [--graphs]

It learns to continue sequences in which every token follows from the two before it. Without a GPU it is trained in f32;
on one, in bfloat16 by autocast. How far two curves may be apart is not guessed: a third model is trained in float64 on
the CPU, and torch's own curve is as far from that one as roundings make it. `--compile` trains compiled models too, and
runs the compiled one of ours on 20 sizes of batches, for which it must not be compiled again; `--graphs`, on a GPU,
records a whole step as a CUDA graph, of either.
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


def patched(device):
    model = fresh(device)
    tilewave.torch.patch(model)
    return model


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


def loss_of(run, data):
    with torch.autocast(data.device.type, torch.bfloat16, enabled=data.device.type == "cuda"):
        logits = run(data[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), data[:, 1:].flatten())


def stepping(model, run=None):
    """One step of training; `run` is the model, or what it was compiled to."""
    run = model if run is None else run
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(data):
        loss = loss_of(run, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def stepping_in_a_graph(model):
    """Return a training step recorded in a CUDA graph, after warm-up steps whose effect on the model is undone.

    The graph knows the model's parameters and the optimizer's state by address only, so the step keeps them alive.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
    device = next(model.parameters()).device
    data, start = sequences(BATCH, 0).to(device), {name: value.clone() for name, value in model.state_dict().items()}

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, data)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which copies the parameters that the first step changes
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = step()
    model.load_state_dict(start)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()

    def replay(given):
        data.copy_(given)
        graph.replay()
        return loss

    replay.uses = model, optimizer
    return replay


def train(model, steps, step=None):
    """The loss of every step, and milliseconds of one, warm."""
    step, device = step or stepping(model), next(model.parameters()).device
    losses, times = [], []
    for number in range(steps):
        data, start = sequences(BATCH, number).to(device), time.perf_counter()
        losses.append(step(data).item())
        times.append(time.perf_counter() - start)
    return torch.tensor(losses), 1000 * sorted(times)[len(times) // 2]


def compilations(run, device, batches):
    """How often a model is compiled for batches of these sizes."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for size in batches:
        tokens = sequences(size, size)[:, :-1].to(device)
        torch._dynamo.mark_dynamic(tokens, 0)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.device.type == "cuda"):
            logits = run(tokens)
        logits.float().sum().backward()
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def apart(one, other):
    return (one - other).abs().max().item()


def main(steps=50, compiles=False, graphs=False):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact, _ = train(fresh("cpu", torch.float64), steps)
    rows = []
    for whose, made in {"torch": fresh, "tilewave": patched}.items():
        rows.append((whose, *train(made(device), steps)))
        if compiles:
            model = made(device)
            step = stepping(model, torch.compile(model, fullgraph=True))
            rows.append((f"{whose}, compiled", *train(model, steps, step)))
        if graphs:
            model = made(device)
            rows.append((f"{whose}, in a graph", *train(model, steps, stepping_in_a_graph(model))))
    roundings = apart(rows[0][1], exact)
    print(tilewave.torch.patch(fresh(device)), "\n")
    print(f"{'':20}{'first loss':>12}{'last loss':>12}{'from f64':>12}{'ms a step':>12}")
    for name, losses, milliseconds in rows:
        first, last, off = losses[0].item(), losses[-1].item(), apart(losses, exact)
        print(f"{name:20}{first:12.4f}{last:12.4f}{off:12.1e}{milliseconds:12.1f}")
        assert off <= 8 * roundings, f"{name} is {off} from float64, torch {roundings}"
    assert rows[0][1][-1] < rows[0][1][0] / 1.2, "nothing was learnt"
    if compiles:
        count = compilations(torch.compile(patched(device), fullgraph=True), device, range(3, 23))
        print(f"\ncompiled {count} time(s) for batches of 20 sizes")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--compile", action="store_true", dest="compiles", help="train compiled models as well")
    parser.add_argument("--graphs", action="store_true", help="train with steps that are CUDA graphs as well")
    given = parser.parse_args()
    main(given.steps, given.compiles, given.graphs)
