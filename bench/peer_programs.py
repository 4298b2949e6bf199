"""Outrider and the programs beside it, called alike: answer(prompt, count, put) decodes greedily
and calls put with each list of token ids as it comes, `count` tokens in all, past any
end-of-sequence token. prompt: token ids. Nothing of a prompt is kept for the next.

Needs the packages that bench/setup_peers installs.
"""

import itertools
import json
import shutil

import llama_cpp
import numpy as np
import torch
import transformers
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from safetensors.torch import load_file, save_file

from serving import pb

transformers.utils.logging.disable_progress_bar()


class Outrider:
    def __init__(self, stub, **speculation):
        """speculation: SpeculationParams; none: as the server does by default."""
        self.stub = stub
        self.speculation = speculation
        self.draft_costs = []  # c of each answer, as the server says

    def answer(self, prompt, count, put):
        for message in self.stub.Generate(pb.GenerateRequest(
                tokenized=pb.Tokenized(input_ids=prompt),
                speculation=pb.SpeculationParams(**self.speculation),
                sampling_params=pb.SamplingParams(temperature=0, max_tokens=count,
                                                  ignore_eos=True))):
            if message.chunk.token_ids:
                put(list(message.chunk.token_ids))
        self.draft_costs.append(message.complete.speculation.draft_cost)


class LlamaDraft(LlamaDraftModel):
    """Another model that drafts k tokens greedily. The binding has no drafter of its own but
    prompt lookup; generate() of this one keeps what it has seen of the same beginning."""

    def __init__(self, path, threads, positions, k):
        self.model, self.k = load_llama(path, threads, positions), k

    def __call__(self, input_ids, /, **_):
        drafted = self.model.generate(input_ids.tolist(), temp=0)
        return np.fromiter(itertools.islice(drafted, self.k), np.intc)


def load_llama(path, threads, positions, draft=None):
    """path: a GGUF file; positions: of prompt and answer."""
    return llama_cpp.Llama(str(path), n_ctx=positions, n_threads=threads, n_threads_batch=threads,
                           verbose=False, draft_model=draft)


class LlamaCpp:
    def __init__(self, path, threads, positions, draft=None):
        """draft: a LlamaDraftModel."""
        self.models = [load_llama(path, threads, positions, draft)]
        if isinstance(draft, LlamaDraft):
            self.models.append(draft.model)

    def answer(self, prompt, count, put):
        for model in self.models:
            model.reset()
        for token in itertools.islice(self.models[0].generate(prompt, temp=0), count):
            put([token])


class TokenStreamer(transformers.generation.streamers.BaseStreamer):
    """Hands the tokens on, behind the prompt, which comes first."""

    def __init__(self, put):
        self.put_tokens, self.is_prompt = put, True

    def put(self, value):
        if not self.is_prompt:
            self.put_tokens(value.flatten().tolist())
        self.is_prompt = False

    def end(self):
        pass


class Transformers:
    def __init__(self, model, **drafting):
        """model: of load_transformers; drafting: generate()'s flags."""
        self.model, self.drafting = model, drafting

    def answer(self, prompt, count, put):
        ids = torch.tensor([prompt])
        self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                            max_new_tokens=count, streamer=TokenStreamer(put), **self.drafting)


def load_transformers(directory, dtype, threads):
    """The model, which generates past its end-of-sequence token."""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def widen_head(draft, output):
    """Writes the draft model as the others can read it: with a row of the LM head for each token,
    of zeros where the draft has none: it says such a token only where it has no logit above 0."""
    config = json.loads((draft / 'config.json').read_text(encoding='utf-8'))
    tensors = {}
    for path in draft.glob('*.safetensors'):
        tensors |= load_file(path)
    listed = config.pop('draft_token_ids', None)
    if listed is not None:
        rows = tensors['lm_head.weight']
        tensors['lm_head.weight'] = rows.new_zeros(config['vocab_size'], rows.shape[1])
        tensors['lm_head.weight'][listed] = rows
    output.mkdir()
    save_file(tensors, output / 'model.safetensors', {'format': 'pt'})
    (output / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    for path in draft.glob('*token*.json'):
        shutil.copy(path, output)


def tokenize_chats(directory, texts):
    """Token ids of each text as a user's message, in the model's chat template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return [tokenizer.apply_chat_template([{'role': 'user', 'content': text}],
                                          add_generation_prompt=True, return_dict=True)['input_ids']
            for text in texts]


@torch.inference_mode()
def next_logits(model, tokens):
    """Float32 logits [vocab] behind token ids."""
    return model(torch.tensor([tokens])).logits[0, -1].float()
