"""Requests that differ in what drafts alone, and what their answers say of it."""

import collections
import json
import statistics
import sys
import time
import typing
from pathlib import Path

import numpy as np

from paired import time_ratio
from serving import pb

SAMPLING = {'greedy': {'temperature': 0}, 'T 0.8, top-p 0.95': {'temperature': 0.8, 'top_p': 0.95},
            'T 1': {'temperature': 1}}
KINDS = {'chat': 'chat', 'code': 'code', 'summary': 'summarising', 'copy': 'copying edits'}
ADAPTIVE = -1  # as K
DEFAULT = 'default'  # as a drafter: none is named
PLAIN = ('', 0)  # a request without drafts, as (drafter, K)
# Of a step's tokens, those that stand for a verified row each, in answers that max_tokens ends.
VERIFIED = {pb.TOKEN_ORIGIN_DRAFTED, pb.TOKEN_ORIGIN_CORRECTED}


class Prompt(typing.NamedTuple):
    kind: str
    text: str
    reference: str = ''  # of a summary, or of code
    chat: bool = True  # or a text that the answer goes on with


def read_prompts():
    """By kind."""
    prompts = collections.defaultdict(list)
    for line in Path(__file__).with_name('speculation_prompts.jsonl').open(encoding='utf-8'):
        prompt = Prompt(**json.loads(line))
        prompts[prompt.kind].append(prompt)
    return prompts


def generate_request(prompt, speculation, sampling, tokens):
    messages = pb.Chat(messages=[pb.ChatMessage(role='user', content=prompt.text)])
    return pb.GenerateRequest(
        **({'messages': messages} if prompt.chat else {'text': prompt.text}),
        speculation=pb.SpeculationParams(**speculation),
        sampling_params=pb.SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling))


def measured(stats, field):
    """Of an answer's SpeculationStats. Exits where the server has measured no costs."""
    if not stats.HasField(field):
        sys.exit(f'reproduce: the server tells no {field} of an answer with drafts; expected one '
                 'that measures costs as it starts, without --prefill-beside beside --lookahead '
                 'fixed or table')
    return getattr(stats, field)


def speculation_params(drafter, k):
    params = {} if k == ADAPTIVE else {'num_speculative_tokens': k}
    return params if drafter in ('', DEFAULT) else params | {'drafter': drafter}


class Arm:
    """Answers to requests that differ in their prompt alone."""

    def __init__(self):
        self.decode_ms = 0
        self.num_behind = 0  # tokens behind the first step's, which may have drafted
        self.num_steps = 0  # that they came from, timed or not
        self.alpha_sum = self.num_verified = self.cost_sum = self.num_drafted = 0
        self.token_ms, self.predicted, self.shift = [], [], []
        self.timed_steps = collections.Counter()  # by their K
        self.answers_ms = []  # of a token, in the mean, by answer
        self.answers = []  # (prompt, text, log-probabilities of the tokens if asked for)
        self.token_ids = []  # by answer
        self.num_spec_steps = 0  # that drafted
        self.num_alternatives = self.num_accepted_alternatives = 0

    def ask(self, stub, prompt, request):
        times, sizes, text, ids, logprobs, verified = [], [], '', [], [], 0
        for message in stub.Generate(request):
            if message.HasField('chunk') and message.chunk.token_ids:
                times.append(time.perf_counter())
                sizes.append(len(message.chunk.token_ids))
                text += message.chunk.text
                ids += message.chunk.token_ids
                logprobs += [token.logprob for token in message.chunk.logprobs]
                verified += sum(origin in VERIFIED for origin in message.chunk.origins)
        complete = message.complete
        for size, begin, end in zip(sizes[1:], times, times[1:]):
            self.token_ms += [1000 * (end - begin) / size] * size
        self.decode_ms += complete.timings.decode_ms
        num_behind = complete.completion_tokens - sizes[0]
        self.num_behind += num_behind
        self.answers_ms.append(complete.timings.decode_ms / num_behind)
        self.answers.append((prompt, text, logprobs))
        self.token_ids.append(ids)
        stats = complete.speculation
        self.shift.append(stats.lenience_shift)
        self.alpha_sum += stats.alpha * verified
        self.num_verified += verified
        self.num_spec_steps += stats.num_spec_steps
        self.num_alternatives += stats.num_alternative_draft_tokens
        self.num_accepted_alternatives += stats.num_accepted_alternatives
        num_drawn = stats.num_draft_tokens - stats.num_alternative_draft_tokens
        if num_drawn > 0:
            self.cost_sum += measured(stats, 'draft_cost') * num_drawn
            self.num_drafted += num_drawn
        # Without drafts an answer is one of plain decoding.
        self.predicted.append(measured(stats, 'predicted_speedup') if num_drawn > 0 else 1)
        self.num_steps += round(complete.completion_tokens / stats.mean_acceptance_length) - 1
        self.timed_steps.update(dict(enumerate(stats.steps_by_lookahead)))

    def ms(self):
        return self.decode_ms / self.num_behind

    def alpha(self):
        return self.alpha_sum / self.num_verified if self.num_verified else 0

    def cost(self):
        return self.cost_sum / self.num_drafted if self.num_drafted else 0

    def tokens_a_step(self):
        return self.num_behind / self.num_steps

    def ms_a_step(self):
        return self.decode_ms / self.num_steps

    def predicted_speedup(self):
        """Over all answers, which are of as many tokens: of their times."""
        return statistics.harmonic_mean(self.predicted)

    def speedup_over(self, plain):
        """With its interval; plain: the arm without drafts, of the same run."""
        return time_ratio(plain.ms_by_prompt(), self.ms_by_prompt())

    def ms_by_prompt(self):
        """[prompts]: of a token, summed over the rounds. Each round asks all prompts."""
        prompts = len({prompt for prompt, _, _ in self.answers})
        return np.reshape(self.answers_ms, (-1, prompts)).sum(axis=0)

    def mean_lookahead(self):
        return sum(k * n for k, n in self.timed_steps.items()) / self.timed_steps.total()


def off_line(name, points):
    """How far off it is, in Markdown. points: (speed-up predicted, speed-up measured) of cells."""
    off = [abs(said / found - 1) for said, found in points]
    return (f'- {name}: off by {statistics.mean(off):.1%} in the mean, by {max(off):.0%} at most, '
            f'too hopeful in {sum(said > found for said, found in points)} of {len(points)} '
            'cells.\n')
