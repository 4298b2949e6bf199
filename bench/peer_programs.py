"""Outrider and the programs beside it, called alike: answer(prompt, count, put) decodes greedily
and calls put with each list of token ids as it comes, `count` tokens in all, past any
end-of-sequence token. prompt: token ids. Nothing of a prompt is kept for the next.

Needs the packages that bench/setup_peers installs.
"""

import itertools

import llama_cpp
import torch
import transformers
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from serving import pb

transformers.utils.logging.disable_progress_bar()


class Outrider:
    def __init__(self, stub, k):
        """k: tokens drafted in each step; None: the server's own choice."""
        self.stub = stub
        self.speculation = {} if k is None else {'num_speculative_tokens': k}

    def answer(self, prompt, count, put):
        for message in self.stub.Generate(pb.GenerateRequest(
                tokenized=pb.Tokenized(input_ids=prompt),
                speculation=pb.SpeculationParams(**self.speculation),
                sampling_params=pb.SamplingParams(temperature=0, max_tokens=count,
                                                  ignore_eos=True))):
            if message.chunk.token_ids:
                put(list(message.chunk.token_ids))


class LlamaCpp:
    def __init__(self, path, threads, positions, lookup):
        """path: a GGUF file; positions: of prompt and answer; lookup: tokens that prompt lookup
        drafts in each step, 0: none."""
        self.model = llama_cpp.Llama(
            str(path), n_ctx=positions, n_threads=threads, n_threads_batch=threads, verbose=False,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None)

    def answer(self, prompt, count, put):
        self.model.reset()
        for token in itertools.islice(self.model.generate(prompt, temp=0), count):
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
    def __init__(self, model, lookup):
        """model: of load_transformers; lookup: tokens that prompt lookup drafts in each step,
        0: none."""
        self.model = model
        self.lookup = {'prompt_lookup_num_tokens': lookup} if lookup else {}

    def answer(self, prompt, count, put):
        ids = torch.tensor([prompt])
        self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                            max_new_tokens=count, streamer=TokenStreamer(put), **self.lookup)


def load_transformers(directory, dtype, threads):
    """The model, which generates past its end-of-sequence token."""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


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
