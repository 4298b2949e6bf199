"""Text for distilling a draft: drawn from the target itself, in shards that are kept on disk.

A shard is a batch of sequences of one length. Each begins with a prompt and goes on with what the
target samples; where an answer ends, or is long enough, the user asks something else, so that no
position is wasted.
In some conversations the target writes what the user says, too: a template of chats begins with it.
All sequences of a shard stand at the same position, so neither cache nor attention needs a mask.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer

from distill_llama import Cache, Llama, RecipeError
from distill_measures import copied
from distill_prompts import KINDS, Excluded, Prompt, PromptSource

# Temperatures that a sequence is drawn at, and their shares. 0: greedy.
TEMPERATURES = (0.0, 0.7, 1.0)
TEMPERATURE_SHARES = (0.4, 0.2, 0.4)

# How it is drawn where the user speaks, and how long that may be.
QUESTION_TEMPERATURE = 0.8
MAX_QUESTION_TOKENS = 80

# How long an answer may be, drawn for each: what begins answers differs more than what goes on.
ANSWER_TOKENS = (32, 160)

SAID = "\0"  # stands for what somebody says in a rendered chat


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """write(temporary path), then the name: a file is whole or absent."""
    temporary = path.with_suffix(f"{path.suffix}.{os.getpid()}.part")  # others may write it, too
    write(temporary)
    os.replace(temporary, path)


class Renderer:
    """Prompts as token ids, in the chat template of the checkpoint where it has one."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.eos_token = config["eos_token"]
        self.eos_id = self.tokenizer.token_to_id(self.eos_token)
        template = config.get("chat_template")
        self.template = None if template is None else jinja2.Template(template)
        generation = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
        eos = generation["eos_token_id"]
        self.eos_ids = eos if isinstance(eos, list) else [eos]

    def prompt(self, prompt: Prompt) -> list[int]:
        if not prompt.chat or self.template is None:
            return self.encode(prompt.text)
        return self.encode(self.chat(("user", prompt.text)))

    def follow_up(self, text: str) -> list[int]:
        """What stands behind the EOS of an answer when the user goes on."""
        if self.template is None:
            return self.encode("\n\n" + text)
        whole = self.chat(("user", ""), ("assistant", SAID), ("user", text))
        return self.encode(whole.split(SAID)[1].removeprefix(self.eos_token))

    def before_question(self, begun: str, first: bool) -> list[int]:
        """What the user's words stand behind, at the start or behind the EOS of an answer, and the
        first of them."""
        if first:
            return self.encode(self.chat(("user", SAID)).split(SAID)[0] + begun)
        whole = self.chat(("user", ""), ("assistant", SAID), ("user", SAID))
        return self.encode(whole.split(SAID)[1].removeprefix(self.eos_token) + begun)

    def words(self) -> list[str]:
        """Tokens of the vocabulary that are a word in lower case behind a space, of five letters or
        more."""
        tokens = sorted(self.tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        return [match[1] for token, _ in tokens
                if (match := re.fullmatch("[Ġ▁]([a-z]{5,})", token))]

    def behind_question(self) -> list[int]:
        """From the end of the user's words to the beginning of the answer, an EOS first."""
        ids = self.encode(self.chat(("user", SAID)).split(SAID)[1])
        if ids[0] not in self.eos_ids:
            raise RecipeError(f"tokenizer_config.json: what the user says ends with token {ids[0]} in "
                              f"chat_template; expected an EOS, of {self.eos_ids}")
        return ids

    def chat(self, *messages: tuple[str, str]) -> str:
        return self.template.render(
            messages=[{"role": role, "content": content} for role, content in messages],
            add_generation_prompt=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def arg_max(logits: torch.Tensor) -> torch.Tensor:
    """Of each row. On a CPU NumPy's, which takes a sixth of the time of PyTorch's."""
    if logits.is_cuda:
        return logits.argmax(-1)
    return torch.from_numpy(logits.numpy().argmax(-1))


def draw(logits: torch.Tensor, best: torch.Tensor, temperatures: torch.Tensor,
         generator: torch.Generator) -> torch.Tensor:
    """A token of each row. logits: f32 [rows, vocab]; best: their arg max; temperatures: [rows], 0:
    the arg max."""
    # By the inverse of the cumulative distribution: one uniform number a row.
    sums = (logits / temperatures.clamp_min(1e-3)[:, None]).softmax(-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, generator=generator, device=logits.device)
    drawn = torch.searchsorted(sums, uniform * sums[:, -1:], right=True)[:, 0]
    return torch.where(temperatures > 0, drawn.clamp_max(logits.shape[1] - 1), best)


@torch.inference_mode()
def generate(target: Llama, renderer: Renderer, seed: str, held_out: bool, rows: int, length: int,
             keep_hidden: bool) -> dict[str, np.ndarray]:
    """A shard: tokens [rows, length], generated (which of them the target drew as answers), copied
    (distill_measures.py), kind and temperature [rows]; with keep_hidden, the target's final and
    auxiliary states as bits of bf16 [rows, length, state_width], the log of the sum of exponentials
    of its logits and their arg max [rows, length]."""
    device = target.embed_tokens.device
    number = int.from_bytes(hashlib.sha256(f"{seed} {held_out}".encode()).digest()[:7], "little")
    rng = np.random.default_rng(number)
    generator = torch.Generator(device).manual_seed(number)
    source = PromptSource(seed, held_out, renderer.words(), own=renderer.template is not None)
    forced = np.full((rows, length), -1, np.int64)  # tokens that are given
    kinds = np.empty(rows, np.uint8)
    for row in range(rows):
        prompt = source.draw()
        ids = (renderer.before_question(prompt.text, first=True) if prompt.kind == "own"
               else renderer.prompt(prompt))
        ids = ids[:length // 2]
        forced[row, :len(ids)] = ids
        kinds[row] = KINDS.index(prompt.kind)
    temperature = rng.choice(TEMPERATURES, rows, p=TEMPERATURE_SHARES).astype(np.float32)
    shard = {"tokens": np.zeros((rows, length), np.int32), "kind": kinds,
             "generated": np.zeros((rows, length), bool), "temperature": temperature}
    if keep_hidden:
        shard |= {"hidden": np.zeros((rows, length, target.state_width), np.uint16),
                  "log_sum_exp": np.zeros((rows, length), np.float32),
                  "best": np.zeros((rows, length), np.int32)}
    tokens, generated = shard["tokens"], shard["generated"]
    tokens[:, 0] = forced[:, 0]
    asking = kinds == KINDS.index("own")  # rows where the user speaks in the target's words
    said = np.zeros(rows, np.int64)  # how many tokens since the other spoke
    least, most = ANSWER_TOKENS
    limit = np.where(asking, MAX_QUESTION_TOKENS, rng.integers(least, most + 1, rows))
    cache = Cache(target.shape, rows, target.embed_tokens)
    for i in range(length):
        hidden = target(torch.from_numpy(tokens[:, i:i + 1]).to(device), cache, i)[:, 0]
        logits = target.logits(hidden)
        best = arg_max(logits)
        if keep_hidden:
            bits = hidden.to(torch.bfloat16).view(torch.uint16)
            shard["hidden"][:, i] = bits.cpu().numpy()
            shard["log_sum_exp"][:, i] = logits.logsumexp(-1).cpu().numpy()
            shard["best"][:, i] = best.cpu().numpy()
        if i + 1 == length:
            break
        temperatures = np.where(asking, np.float32(QUESTION_TEMPERATURE), temperature)
        drawn = draw(logits, best, torch.from_numpy(temperatures).to(device),
                     generator).cpu().numpy()
        free = forced[:, i + 1] < 0
        generated[:, i + 1] = free & ~asking
        tokens[:, i + 1] = np.where(free, drawn, forced[:, i + 1])
        said = np.where(free, said + 1, 0)
        ended = free & np.isin(drawn, renderer.eos_ids)
        for row in np.flatnonzero(ended | (said == limit)):
            if asking[row]:
                ids = renderer.behind_question()[1:]
            elif KINDS[kinds[row]] == "own":
                ids = renderer.before_question(source.own(), first=False)
            else:
                ids = renderer.follow_up(source.follow_up(KINDS[kinds[row]]))
            eos, said[row] = [] if ended[row] else [renderer.eos_id], 0
            asking[row] = KINDS[kinds[row]] == "own" and not asking[row]
            limit[row] = MAX_QUESTION_TOKENS if asking[row] else rng.integers(least, most + 1)
            ids = (eos + ids)[:length - i - 2]
            forced[row, i + 2:i + 2 + len(ids)] = ids
    shard["copied"] = copied(tokens)
    return shard


def drop_excluded(shard: dict[str, np.ndarray], renderer: Renderer,
                  excluded: list[Excluded]) -> int:
    """Takes the conversations that share words with excluded prompts out of a shard, whoever says
    them; returns how many."""
    texts = [renderer.tokenizer.decode(row.tolist(), skip_special_tokens=False)
             for row in shard["tokens"]]
    kept = np.array([not any(prompts.shares(text) for prompts in excluded) for text in texts])
    for name, field in shard.items():
        shard[name] = field[kept]
    return int(len(kept) - kept.sum())


class Shards:
    """The shards of one kind in a folder; `hidden`, the large part, is mapped."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.paths = sorted(directory.glob(f"{name}-?????.npz"))

    def path(self, number: int) -> Path:
        return self.directory / f"{self.name}-{number:05d}.npz"

    def write(self, number: int, shard: dict[str, np.ndarray]) -> None:
        """The .npz comes last and in one piece: where it is, the shard is whole."""
        path = self.path(number)
        hidden = shard.pop("hidden", None)
        if hidden is not None:
            np.save(path.with_suffix(".hidden.npy"), hidden)
        temporary = path.with_suffix(".part")
        with open(temporary, "wb") as file:
            np.savez(file, **shard)
        os.replace(temporary, path)

    def read(self) -> list[dict[str, np.ndarray]]:
        shards = []
        for path in self.paths:
            with np.load(path) as file:
                shard = {name: file[name] for name in file.files}
            hidden = path.with_suffix(".hidden.npy")
            if hidden.exists():
                shard["hidden"] = np.load(hidden, mmap_mode="r")
            shards.append(shard)
        return shards


class Batches:
    """Sequences of shards, by number. Shards of one length."""

    def __init__(self, shards: list[dict[str, np.ndarray]], device: str) -> None:
        self.shards, self.device = shards, device
        self.sequences = [(s, row) for s, shard in enumerate(shards)
                          for row in range(len(shard["tokens"]))]
        self.length = shards[0]["tokens"].shape[1]
        lengths = {shard["tokens"].shape[1] for shard in shards}
        if len(lengths) > 1:
            raise RecipeError(f"shards hold sequences of {sorted(lengths)} tokens; expected one "
                              f"--length for all")

    def __len__(self) -> int:
        return len(self.sequences)

    def column(self, name: str, numbers: np.ndarray) -> torch.Tensor | None:
        """A field of these sequences; None where a shard goes without it."""
        parts = []
        for number in numbers:
            shard, row = self.sequences[number]
            if name not in self.shards[shard]:
                return None
            parts.append(self.shards[shard][name][row])
        return torch.from_numpy(np.stack(parts)).to(self.device)


def frequent_tokens(shards: list[dict[str, np.ndarray]], vocab_size: int, count: int,
                    always: list[int]) -> list[int]:
    """The tokens that a trimmed head scores, ascending: `always` and those that the target draws
    most often; among equals the smaller ids, which byte-level BPE merged first."""
    counts = np.zeros(vocab_size, np.int64)
    for shard in shards:
        counts += np.bincount(shard["tokens"][shard["generated"]], minlength=vocab_size)
    counts[always] = np.iinfo(np.int64).max
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:min(count, vocab_size)].tolist())
