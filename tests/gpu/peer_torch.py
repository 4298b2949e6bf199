#!/usr/bin/env python3
"""The peers: the same shapes in plain PyTorch, on the same GPU. Prints a line of JSON a result.

    peer_torch.py [--compiled] SHAPE.json…

For each shape: a greedy decode step with a full cache of KEYS tokens, captured in a CUDA graph; and
every product's time and the bytes of its weights a second, in a graph that goes through more
weights than any cache holds; gate_up with its activation behind it, as Outrider has it.
--compiled: the step alone, compiled by torch.compile's max-autotune first, which takes long; the
graph is captured as the other is.
Weights are random. {"unavailable": why} where there is no PyTorch or no GPU for it.
"""

import json
import statistics
import sys
from pathlib import Path

KEYS = 1024  # tokens in the cache, as the decode benchmark has
REPEATS = 20
SPREAD_BYTES = 256 << 20  # of weights between two uses of the same


def say(**result) -> None:
    print(json.dumps(result), flush=True)


try:
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention, silu
except ImportError as error:
    say(unavailable=f"there is no PyTorch here: {error}")
    sys.exit(0)


def captured(step):
    """The step as a CUDA graph, warmed up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(run, in_a_row: int = 4) -> float:
    """Of one, on the device's clock: the median of REPEATS."""
    samples = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(in_a_row):
            run()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / in_a_row)
    return statistics.median(samples[3:])


def random(*shape: int):
    """In (-1/64, 1/64), as `outrider bench` has them."""
    weights = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    return weights.uniform_(-1 / 64, 1 / 64)


def products(config: dict) -> dict[str, tuple[int, int]]:
    """name -> [n, k], with the parts that Outrider stacks stacked."""
    hidden, ffn, size = (config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return {"qkv": ((heads + 2 * kv_heads) * size, hidden), "attention_out": (hidden, heads * size),
            "gate_up": (2 * ffn, hidden), "down": (hidden, ffn),
            "lm_head": (config["vocab_size"], hidden)}


def activated(x, weight):
    """An FFN's first product and SwiGLU: bf16 [rows, n / 2]."""
    gate, up = linear(x, weight).chunk(2, -1)
    return silu(gate) * up


def measure_products(name: str, config: dict) -> None:
    for product, (n, k) in products(config).items():
        copies = max(1, min(64, SPREAD_BYTES // (2 * n * k)))
        weights = [random(n, k) for _ in range(copies)]
        for rows in (1, 5, 8):
            x = random(rows, k)

            def step(x=x, weights=weights, run=activated if product == "gate_up" else linear):
                for weight in weights:
                    run(x, weight)
            ms = milliseconds(captured(step)) / copies
            say(name=f"linear/{name}/{product}/rows:{rows}", us=1e3 * ms,
                bytes_per_second=2 * n * k / (1e-3 * ms))


class Decoder:
    """One greedy step of a Llama at position KEYS: everything that varies is in tensors."""

    def __init__(self, config: dict):
        self.config = config
        sizes = products(config)
        self.layers = [{**{name: random(*sizes[name]) for name in sizes if name != "lm_head"},
                        "norms": torch.ones(2, config["hidden_size"], dtype=torch.bfloat16,
                                            device="cuda"),
                        "cache": random(2, 1, config["num_key_value_heads"], KEYS + 1,
                                        config["head_dim"])}
                       for _ in range(config["num_hidden_layers"])]
        self.norm = torch.ones(config["hidden_size"], dtype=torch.bfloat16, device="cuda")
        self.embedding = random(*sizes["lm_head"])
        self.token = torch.tensor([1], device="cuda")
        half = config["head_dim"] // 2
        angles = KEYS * config["rope_theta"] ** (-torch.arange(half, device="cuda") / half)
        self.cos, self.sin = (f(angles).to(torch.bfloat16) for f in (torch.cos, torch.sin))

    def normed(self, x, weight):
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.to(torch.bfloat16) * weight

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        return torch.cat((first * self.cos - second * self.sin,
                          second * self.cos + first * self.sin), -1)

    def step(self):
        config = self.config
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        x = self.embedding[self.token]
        for layer in self.layers:
            qkv = linear(self.normed(x, layer["norms"][0]), layer["qkv"])
            q, k, v = qkv.view(1, heads + 2 * kv_heads, 1, config["head_dim"]).split(
                (heads, kv_heads, kv_heads), 1)
            layer["cache"][0, :, :, KEYS:] = self.rotated(k)
            layer["cache"][1, :, :, KEYS:] = v
            attended = scaled_dot_product_attention(self.rotated(q), layer["cache"][0],
                                                    layer["cache"][1], enable_gqa=True)
            x = x + linear(attended.reshape(1, -1), layer["attention_out"])
            x = x + linear(activated(self.normed(x, layer["norms"][1]), layer["gate_up"]),
                           layer["down"])
        logits = linear(self.normed(x, self.norm), self.embedding)
        self.token.copy_(logits.argmax(-1))


def short_name(shape: Path) -> str:
    return shape.stem.rpartition("-")[2]


def main() -> None:
    if not torch.cuda.is_available():
        say(unavailable="PyTorch finds no GPU")
        return
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    say(name="versions", torch=torch.__version__, cuda=torch.version.cuda,
        gpu=torch.cuda.get_device_name())
    compiled = sys.argv[1] == "--compiled"
    how = "compile" if compiled else "graph"
    for shape in map(Path, sys.argv[2 if compiled else 1:]):
        config = json.loads(shape.read_text())
        decoder = Decoder(config)
        step = decoder.step
        if compiled:
            step = torch.compile(step, mode="max-autotune-no-cudagraphs")
        ms = milliseconds(captured(step))
        say(name=f"decode/{shape.stem}/{how}", ms=ms,
            figure=f"peer_torch_{how}_{short_name(shape)}_ms", value=ms)
        del decoder
        torch.cuda.empty_cache()
        if not compiled:
            measure_products(shape.stem, config)


if __name__ == "__main__":
    main()
