#!/usr/bin/env python3
"""Distils what drafts for a target: a wide, shallow model (as wide as the target, a few layers, the
target's embedding) or, with --kind head, one layer on the target's own last states. Either has an
LM head for the target's most frequent tokens alone.

    tools/distill_draft.py generate --target DIR          # text that the target draws, in shards
    tools/distill_draft.py train --target DIR             # trains on them; logs held-out acceptance
    tools/distill_draft.py export --target DIR --output DRAFT   # what `serve --draft`, or for a
                                                          # head `serve --draft-head`, takes

Every command takes up where it was stopped, in --work. Packages: requirements-train.txt.

The loss of a position is KL(p || q) + tv_weight * (1 - sum of min(p, q)), p the target's whole
distribution at temperature 1 and q the draft's: the sum is the probability that rejection sampling
accepts a draft there. The log's lines are JSON; `alpha_greedy` is the share of positions of greedy
text where the draft's arg max is the target's, `alpha_sampled` the mean of the sum of min(p, q)
over text at temperature 1, both over positions that the target generated from held-out prompts.
A head is taught to go on from its own guesses, too: the lines give its first token's acceptance,
and `alpha_by_depth` that of each token in a row of --depth, where those before it were right.
`alpha_new` is both over all but the tokens that follow the four before them as they did the last
time, which training leaves out, too.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from complete_draft import DraftError, complete
from distill_data import (Batches, Renderer, Shards, drop_excluded, frequent_tokens, generate,
                          write_whole)
from distill_head import AUX_LAYERS, WEIGHTS, DraftHead, load_head, save_head
from distill_llama import Llama, RecipeError, aux_layers_of, load_target, save_trained
from distill_measures import Comparison, compare_logits, expected_speedup, lookup_acceptance, shares
from distill_optimizers import learning_rate, make_optimizers
from distill_prompts import KINDS, SHARES, Excluded

CHECKPOINT_SECONDS = 60
DEPTH_DISCOUNT = 0.8  # weight in the loss of a head's guess over that of the one before it
LOSS_ROWS = {"cpu": 256, "cuda": 8192}  # positions whose logits are held at once


def open_work(arguments: argparse.Namespace) -> None:
    """Makes the folder, or checks that what is in it was made from the same target, and all of its
    text without the same prompts."""
    weights = sorted(arguments.target.glob("*.safetensors"))
    if not weights:
        raise RecipeError(f"--target {arguments.target}: expected a folder with *.safetensors")
    arguments.work.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in weights))
    config = json.loads((arguments.target / "config.json").read_text(encoding="utf-8"))
    settings = {"target_sha256": digest.hexdigest(), "seed": arguments.seed,
                "shares": dict(zip(KINDS, SHARES)), AUX_LAYERS: list(aux_layers_of(config)),
                "excluded": sorted({prompts.sha256 for prompts in getattr(arguments, "exclude", [])})}
    path = arguments.work / "settings.json"
    if not path.exists():
        write_whole(path, lambda temporary: temporary.write_text(json.dumps(settings)))
    found = {"excluded": [], **json.loads(path.read_text())}
    if arguments.command != "generate":
        settings["excluded"] = found["excluded"]
    if found != settings:
        raise RecipeError(f"{path}: holds {found}; expected {settings}, or another --work")


def load(arguments: argparse.Namespace, max_positions: int, with_aux: bool) -> Llama:
    return load_target(arguments.target, arguments.device, getattr(torch, arguments.dtype),
                       max_positions, with_aux)


def run_generate(arguments: argparse.Namespace) -> None:
    renderer = Renderer(arguments.target)
    target = load(arguments, arguments.length, with_aux=arguments.keep_hidden)
    first = arguments.first_shard
    for name, numbers in (("held_out", range(0 if first else arguments.held_out_shards)),
                          ("train", range(first, first + arguments.shards))):
        shards = Shards(arguments.work, name)
        for number in numbers:
            if shards.path(number).exists():
                continue
            if arguments.deadline < time.monotonic():
                return
            start = time.monotonic()
            shard = generate(target, renderer, f"{arguments.seed} {number}", name == "held_out",
                             arguments.rows, arguments.length, arguments.keep_hidden)
            rate = shard["tokens"].size / (time.monotonic() - start)
            dropped = drop_excluded(shard, renderer, arguments.exclude)
            drawn = int(shard["generated"].sum())
            shards.write(number, shard)
            log(arguments, {"shard": f"{name}-{number:05d}", "tokens": shard["tokens"].size,
                            "generated": drawn, "dropped": dropped, "tokens_per_second": rate})


def of_next(marks: torch.Tensor) -> torch.Tensor:
    """Marks of tokens [rows, positions], each at the position before its token."""
    return torch.cat((marks[:, 1:], torch.zeros_like(marks[:, :1])), 1)


class Trainer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        train, held_out = (Shards(arguments.work, name).read() for name in ("train", "held_out"))
        if not train or not held_out:
            raise RecipeError(f"{arguments.work}: no shards; expected those of `generate`")
        self.train = Batches(train, arguments.device)
        self.held_out = Batches(held_out, arguments.device)
        self.target = load(arguments, self.train.length, with_aux=arguments.kind == "head")
        self.token_ids = self.choose_tokens(train)
        ids = torch.tensor(self.token_ids, device=arguments.device)
        self.target_head = self.target.lm_head[ids]
        self.row_of_token = torch.full((self.target.shape.vocab_size,), -1,
                                       device=arguments.device)
        self.row_of_token[ids] = torch.arange(len(ids), device=arguments.device)
        self.draft = self.make_head() if arguments.kind == "head" else self.make_draft()
        self.draft.to(arguments.device)
        self.draft_forward = torch.compile(self.draft) if arguments.compile else self.draft
        self.target_forward = torch.compile(self.target) if arguments.compile else self.target
        # The fused one reads and writes a position's logits twice, not twenty times.
        self.compare_logits = (torch.compile(compare_logits, dynamic=True) if arguments.compile
                               else compare_logits)
        self.optimizers = make_optimizers(self.draft, arguments.device)
        self.step = 0
        self.started_from = None  # what the head's weights were
        if arguments.start_from is not None:
            weights = (arguments.start_from / WEIGHTS).read_bytes()
            self.started_from = hashlib.sha256(weights).hexdigest()
        self.loss_rows = LOSS_ROWS[arguments.device]
        if self.path.exists():
            state = torch.load(self.path, map_location=arguments.device)
            if state["layers"] != arguments.layers:
                raise RecipeError(f"{self.path}: has {state['layers']} layers; expected --layers, "
                                  f"{arguments.layers}, or another --work")
            found = state.get("started_from")
            if self.started_from not in (None, found):
                raise RecipeError(f"{self.path}: did not begin with the head that --start-from, "
                                  f"{arguments.start_from}, holds; expected none, to go on, or "
                                  f"another --work")
            self.started_from = found
            self.draft.load_state_dict(state["draft"], strict=False)  # what is shared is not there
            for optimizer, its_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(its_state)
            self.step = state["step"]

    @property
    def path(self) -> Path:
        return self.arguments.work / f"train-{self.arguments.kind}.pt"

    def choose_tokens(self, shards: list[dict[str, np.ndarray]]) -> list[int]:
        """Chosen once: more shards do not change a head that is being trained. One that is trained
        further has those of its new text, since the rows that score are the target's own."""
        path = self.arguments.work / "draft_token_ids.json"
        if not path.exists():
            ids = frequent_tokens(shards, self.target.shape.vocab_size, self.arguments.head_tokens,
                                  Renderer(self.arguments.target).eos_ids)
            write_whole(path, lambda temporary: temporary.write_text(json.dumps(ids)))
        ids = json.loads(path.read_text())
        if len(ids) != min(self.arguments.head_tokens, self.target.shape.vocab_size):
            raise RecipeError(f"{path}: has {len(ids)} tokens; expected --head-tokens, "
                              f"{self.arguments.head_tokens}, or another --work")
        return ids

    def make_draft(self) -> Llama:
        """Begins as layers of the target, evenly taken from its first to its last, below its own
        embedding, final norm and head."""
        arguments, target = self.arguments, self.target
        shape = dataclasses.replace(target.shape, num_layers=arguments.layers,
                                    head_rows=len(self.token_ids))
        draft = Llama(shape, target.dtype, self.train.length)
        taken = np.linspace(0, target.shape.num_layers - 1, arguments.layers).round().astype(int)
        with torch.no_grad():
            draft.embed_tokens = torch.nn.Parameter(target.embed_tokens, requires_grad=False)
            draft.norm.copy_(target.norm)
            draft.lm_head.copy_(self.target_head)
            for layer, number in zip(draft.layers, taken):
                for name, parameter in layer.named_parameters():
                    parameter.copy_(getattr(target.layers[number], name))
        return draft

    def make_head(self) -> DraftHead:
        head = DraftHead(self.target, self.target_head)
        if self.arguments.start_from is not None:
            load_head(head, self.arguments.start_from)
        return head

    def predict(self, tokens: torch.Tensor, wanted: torch.Tensor,
                hidden: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """By depth: states at those of the wanted positions that can be predicted [m, hidden], and
        which of the wanted they are [n]. hidden: what the target's `forward` returns."""
        if self.arguments.kind == "model":
            everything = torch.ones_like(wanted)[wanted]
            return [(self.draft_forward(tokens)[wanted], everything)]
        predictions, states = [], self.target.final(hidden)
        carried = self.draft.project(hidden[..., states.shape[-1]:])
        for depth in range(1, self.arguments.depth + 1):
            carried = carried[:, :-1]
            states = self.draft_forward(states[:, :-1], carried, tokens[:, depth:])
            within = torch.zeros_like(wanted)
            within[:, depth:] = wanted[:, depth:]
            predictions.append((states[wanted[:, depth:]], within[wanted]))
        return predictions

    def save(self) -> None:
        state = {"draft": {name: tensor for name, tensor in self.draft.state_dict().items()
                           if name != "embed_tokens"},  # shared with the target
                 "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                 "step": self.step,
                 "layers": self.arguments.layers, "started_from": self.started_from}
        write_whole(self.path, lambda temporary: torch.save(state, temporary))

    @torch.no_grad()
    def taught(self, batches: Batches, numbers: np.ndarray, tokens: torch.Tensor,
               wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the target: what its `forward` returns and, at the wanted positions, the log of the
        sum of exponentials of all logits [n], their arg max [n]."""
        bits = batches.column("hidden", numbers)
        if bits is not None:
            bits = bits[..., :self.target.state_width]  # a model takes the final ones alone
            hidden = bits.view(torch.bfloat16).to(self.target.dtype)
            return (hidden, batches.column("log_sum_exp", numbers)[wanted],
                    batches.column("best", numbers)[wanted].long())
        hidden = self.target_forward(tokens)
        sums, best = [], []
        for part in self.target.final(hidden)[wanted].split(self.loss_rows):
            logits = self.target.logits(part)
            sums.append(logits.logsumexp(-1))
            best.append(logits.argmax(-1))
        return hidden, torch.cat(sums), torch.cat(best)

    def positions(self, batches: Batches, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens of the sequences, and behind which of them the target drew the next one; for
        training, such as are not copied."""
        wanted = of_next(batches.column("generated", numbers))
        if batches is self.train:
            wanted &= ~of_next(batches.column("copied", numbers))
        return batches.column("tokens", numbers), wanted

    def compare(self, draft_hidden: torch.Tensor, hidden: torch.Tensor,
                log_sum_exp: torch.Tensor) -> tuple[torch.Tensor, Comparison]:
        """The draft's logits at n positions [n, head_rows], and what they are worth."""
        logits = F.linear(draft_hidden, self.draft.lm_head.to(self.target.dtype))
        target_logits = F.linear(hidden, self.target_head)
        return logits, self.compare_logits(logits.detach(), target_logits, log_sum_exp,
                                           self.arguments.tv_weight)

    def num_steps(self) -> int:
        return max(1, self.arguments.train_tokens // (self.arguments.batch * self.train.length))

    def numbers_of(self, step: int) -> np.ndarray:
        """Which sequences a step sees: each epoch in an order of its own."""
        places = np.arange(step * self.arguments.batch, (step + 1) * self.arguments.batch)
        epochs, size = places // len(self.train), len(self.train)
        return np.concatenate([
            np.random.default_rng([self.arguments.seed, epoch]).permutation(size)[
                places[epochs == epoch] % size] for epoch in np.unique(epochs)])

    def train_step(self) -> float:
        numbers = self.numbers_of(self.step)
        tokens, wanted = self.positions(self.train, numbers)
        hidden, log_sum_exp, _ = self.taught(self.train, numbers, tokens, wanted)
        predictions, total = self.predict(tokens, wanted, hidden), 0.0
        hidden, gradients = self.target.final(hidden)[wanted], []
        for depth, (states, which) in enumerate(predictions):
            # Logits are many: backward through them part by part, then once through the layers.
            leaf, weight = states.detach().requires_grad_(), DEPTH_DISCOUNT**depth / len(states)
            for part in range(0, len(leaf), self.loss_rows):
                rows = slice(part, part + self.loss_rows)
                logits, compared = self.compare(leaf[rows], hidden[which][rows],
                                                log_sum_exp[which][rows])
                logits.backward(compared.gradient * weight)
                total += compared.loss.sum() * weight
            gradients.append(leaf.grad)
        torch.autograd.backward([states for states, _ in predictions], gradients)
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        rate = learning_rate(self.arguments.learning_rate, self.step, self.num_steps())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    @torch.no_grad()
    def evaluate(self) -> dict:
        """Held-out acceptance of the first token, over all and by kind of prompt, without copied
        tokens, and of each depth in turn."""
        depths = self.arguments.depth if self.arguments.kind == "head" else 1
        sums = np.zeros((2, depths, 2, len(KINDS)))  # greedy, sampled; not copied, copied
        counts = np.zeros(sums.shape)
        temperature = np.concatenate([s["temperature"] for s in self.held_out.shards])
        kind = np.concatenate([s["kind"] for s in self.held_out.shards])
        for mode, wanted_temperature in enumerate((0.0, 1.0)):
            chosen = np.flatnonzero(temperature == wanted_temperature)
            for begin in range(0, len(chosen), self.arguments.batch):
                numbers = chosen[begin:begin + self.arguments.batch]
                tokens, wanted = self.positions(self.held_out, numbers)
                hidden, log_sum_exp, best = self.taught(self.held_out, numbers, tokens, wanted)
                predictions = self.predict(tokens, wanted, hidden)
                hidden, best = self.target.final(hidden)[wanted], self.row_of_token[best]
                kinds = torch.from_numpy(kind[numbers].astype(np.int64)).to(wanted.device)
                copies = of_next(self.held_out.column("copied", numbers))
                groups = (kinds[:, None] + len(KINDS) * copies)[wanted]
                for depth, (states, which) in enumerate(predictions):
                    accepted = []
                    for part in range(0, len(states), self.loss_rows):
                        rows = slice(part, part + self.loss_rows)
                        logits, compared = self.compare(states[rows], hidden[which][rows],
                                                        log_sum_exp[which][rows])
                        overlap = compared.overlap
                        if mode == 0:
                            overlap = (logits.argmax(-1) == best[which][rows]).float()
                        accepted.append(overlap)
                    group, size = groups[which].cpu().numpy(), counts[mode, depth].size
                    weights = torch.cat(accepted).cpu().numpy()
                    sums[mode, depth] += np.bincount(group, weights, size).reshape(2, -1)
                    counts[mode, depth] += np.bincount(group, minlength=size).reshape(2, -1)
        names = ("alpha_greedy", "alpha_sampled")
        result = {name: shares(sums[mode, 0].sum(0), counts[mode, 0].sum(0))
                  for mode, name in enumerate(names)}
        result["alpha_new"] = {name: shares(sums[mode, 0, 0], counts[mode, 0, 0])["all"]
                               for mode, name in enumerate(names)}
        if depths > 1:
            result["alpha_by_depth"] = {
                name: [shares(sums[mode, depth].sum(0), counts[mode, depth].sum(0))["all"]
                       for depth in range(depths)] for mode, name in enumerate(names)}
        return result

    def run(self) -> None:
        arguments = self.arguments
        draft = self.draft if arguments.kind == "head" else self.draft.shape
        size = {"parameters_read": draft.read_each_pass(),
                "target_parameters_read": self.target.shape.read_each_pass()}
        cost = (arguments.cost if arguments.cost is not None
                else size["parameters_read"] / size["target_parameters_read"])
        coverage = np.mean([np.isin(s["tokens"][s["generated"]], self.token_ids).mean()
                            for s in self.held_out.shards])
        log(arguments, {"begin": self.step, "steps": self.num_steps(), **size, "c": cost,
                        "head_tokens": len(self.token_ids), "head_coverage": float(coverage),
                        "train_sequences": len(self.train), "length": self.train.length,
                        "prompt_lookup_greedy": lookup_acceptance(self.held_out.shards)})
        start = saved = time.monotonic()
        seen, loss = 0, 0.0
        while True:
            last = self.step >= self.num_steps() or arguments.deadline < time.monotonic()
            evaluates = last or self.step % arguments.evaluate_every == 0
            if evaluates:
                alpha = self.evaluate()
                rate = seen / (time.monotonic() - start)
                log(arguments, {"step": self.step, "loss": float(loss), **alpha,
                                "positions": self.step * arguments.batch * self.train.length,
                                "positions_per_second": rate,
                                "expected": {name: expected_speedup(alpha[name]["all"], cost)
                                             for name in ("alpha_greedy", "alpha_sampled")}})
            if evaluates or saved + CHECKPOINT_SECONDS < time.monotonic():
                self.save()
                saved = time.monotonic()
            if last:
                return
            loss = self.train_step()
            seen += arguments.batch * self.train.length


def run_train(arguments: argparse.Namespace) -> None:
    Trainer(arguments).run()


def run_export(arguments: argparse.Namespace) -> None:
    trainer = Trainer(arguments)
    if not trainer.path.exists():
        raise RecipeError(f"{trainer.path}: missing; expected what `train` leaves")
    if arguments.kind == "head":
        save_head(trainer.draft, trainer.token_ids, arguments.target, arguments.output)
        return
    save_trained(trainer.draft, trainer.token_ids, arguments.target, arguments.output)
    if not arguments.trained_only:
        complete(arguments.output, arguments.target, arguments.output)


def log(arguments: argparse.Namespace, line: dict) -> None:
    def rounded(value):
        if isinstance(value, dict):
            return {key: rounded(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [rounded(inner) for inner in value]
        return round(value, 5) if isinstance(value, float) else value

    text = json.dumps(rounded(line))
    print(text, flush=True)
    with open(arguments.work / "log.jsonl", "a", encoding="utf-8") as file:
        file.write(text + "\n")


def at_least(least: int) -> Callable[[str], int]:
    """Reads a flag's whole number."""
    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"is {value}; expected {least} or more")
        return value

    return read


def parse() -> argparse.Namespace:
    cache = Path(os.environ.get("OUTRIDER_CACHE") or Path.home() / ".cache" / "outrider")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--target", type=Path, required=True, metavar="DIR",
                        help="what tools/fetch_model.py printed")
    common.add_argument("--work", type=Path, default=cache / "distill" / "run", metavar="DIR",
                        help="shards, training state and log (default: %(default)s)")
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--device", choices=("cpu", "cuda"),
                        default="cuda" if torch.cuda.is_available() else "cpu")
    common.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                        help="of what enters a linear layer; a CPU without bf16 instructions is "
                        "faster in float32 (default: %(default)s)")
    common.add_argument("--threads", type=int, help="of the CPU (default: PyTorch's)")
    common.add_argument("--minutes", type=float, default=math.inf,
                        help="stop after so long, to be continued")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("generate", parents=[common], help="draw text from the target")
    command.set_defaults(run=run_generate)
    command.add_argument("--exclude", type=Excluded, action="append", default=[], metavar="FILE",
                         help="prompts, as the bench has them: drop what shares 8 words in a row "
                         "with one, or all of a shorter one (may be given several times)")
    command.add_argument("--shards", type=at_least(1), default=48, help="of training text")
    command.add_argument("--first-shard", type=at_least(0), default=0, metavar="NUMBER",
                         help="of training text; the one that begins with 0, the default, draws "
                         "the held-out text, too, so that several processes can fill one --work")
    command.add_argument("--held-out-shards", type=at_least(1), default=1)
    command.add_argument("--rows", type=at_least(1), default=4096,
                         help="sequences of a shard, in one batch")
    command.add_argument("--length", type=at_least(1), default=512, help="tokens of a sequence")
    command.add_argument("--keep-hidden", action="store_true",
                         help="keep the target's final and auxiliary states: more disk, and "
                         "training that does not run the target (worth it on a CPU)")

    training = argparse.ArgumentParser(add_help=False, parents=[common])
    training.add_argument("--kind", choices=("model", "head"), default="model")
    training.add_argument("--layers", type=at_least(1), default=2, help="of a model")
    training.add_argument("--depth", type=at_least(1), default=3,
                          help="tokens in a row that a head is taught to guess (default: 3)")
    training.add_argument("--start-from", type=Path, metavar="DIR",
                          help="an exported head to train further, in a new --work")
    training.add_argument("--head-tokens", type=at_least(1), default=8192)
    training.add_argument("--batch", type=at_least(1), default=128, help="sequences of a step")
    training.add_argument("--learning-rate", type=float, default=1e-3)
    command = commands.add_parser("train", parents=[training], help="train the draft")
    command.set_defaults(run=run_train, compile=False)
    command.add_argument("--train-tokens", type=int, default=300_000_000,
                         help="positions to see, over all epochs, while the learning rate falls")
    command.add_argument("--tv-weight", type=float, default=1.0)
    command.add_argument("--evaluate-every", type=at_least(1), default=200, metavar="STEPS")
    command.add_argument("--cost", type=float, help="c: time of a draft pass over that of a target "
                         "pass (default: parameters read by one over the other's)")
    command.add_argument("--compile", action="store_true",
                         help="torch.compile both models and the loss")
    command = commands.add_parser("export", parents=[training], help="write the draft's checkpoint")
    command.set_defaults(run=run_export, compile=False)
    command.add_argument("--output", type=Path, required=True, metavar="DIR")
    command.add_argument("--trained-only", action="store_true",
                         help="leave out what tools/complete_draft.py takes from the target: its "
                         "embedding and its tokenizer")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    arguments.deadline = time.monotonic() + 60 * arguments.minutes
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    try:
        if getattr(arguments, "start_from", None) is not None and arguments.kind != "head":
            raise RecipeError("--start-from takes an exported head: expected --kind head")
        open_work(arguments)
        arguments.run(arguments)
    except (RecipeError, DraftError, OSError) as error:
        print(f"distill_draft: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
