"""The other side of `vllm_rule.py`, in vLLM's environment: settings and logits come, ids go, until its input ends."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what vLLM prints goes to standard error

from vllm_rule_pipe import received, send  # noqa: E402, I001

from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p, random_sample  # noqa: E402
from vllm.v1.sample.rejection_sampler import RejectionSampler, rejection_sample  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata  # noqa: E402


def metadata(count, temperature, top_k, top_p):
    """The settings of `count` requests alike."""
    none, greedy = torch.empty(0), temperature == 0
    return SamplingMetadata(
        temperature=None if greedy else torch.full((count,), temperature),
        all_greedy=greedy,
        all_random=not greedy,
        top_k=torch.full((count,), top_k, dtype=torch.int32) if top_k else None,
        top_p=torch.full((count,), top_p) if top_p < 1 else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[[] for _ in range(count)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def behind(logits, temperature, top_k, top_p):
    """Logits [R, V] behind temperature, top-k and top-p."""
    if not temperature:
        return logits
    count = len(logits)
    most = torch.full((count,), top_k, dtype=torch.int64) if top_k else None
    share = torch.full((count,), top_p) if top_p < 1 else None
    return apply_top_k_top_p(logits / temperature, most, share)


def drawn(logits, temperature):
    """Ids of processed logits [R, V]."""
    return random_sample(logits.softmax(-1, dtype=torch.float32), {}) if temperature else logits.argmax(-1)


def decided(settings, whole, target, draft, drafts):
    """Ids [B, K+1] of logits [B, K+1, V] and [B, K, V]; -1 behind the first rejected draft."""
    count, k = drafts.shape
    given = SpecDecodeMetadata.make_dummy(drafts.tolist(), torch.device("cpu"))
    proposed = behind(draft.flatten(0, 1), *settings).softmax(-1, dtype=torch.float32)
    about = metadata(count, *settings)
    if whole:
        places = torch.arange(count * (k + 1), dtype=torch.int32).view(count, k + 1)
        given.target_logits_indices, given.bonus_logits_indices = places[:, :k].flatten(), places[:, k].contiguous()
        return RejectionSampler(Sampler())(given, proposed, target.flatten(0, 1), about).sampled_token_ids
    bonus = drawn(behind(target[:, k], *settings), settings[0])[:, None]
    rows = behind(target[:, :k].flatten(0, 1), *settings).contiguous()
    ids, lengths = given.draft_token_ids, given.num_draft_tokens
    return rejection_sample(ids, lengths, k, given.cu_num_draft_tokens, proposed, rows, bonus, about)


def answer(settings, whole, arrays):
    """Ids, and the text of an error."""
    try:
        logits = [torch.from_numpy(one) for one in arrays]
        alone = len(arrays) == 1
        ids = drawn(behind(logits[0], *settings), settings[0]) if alone else decided(settings, whole, *logits)
        return ids.numpy().astype(np.int64), b""
    except Exception as error:
        return np.empty(0, np.int64), f"{type(error).__name__}: {error}".encode()


def main():
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()  # what its workers do: C++ kernels where Triton has no CPU
    torch.manual_seed(0)
    while True:
        try:
            (temperature, top_k, top_p, whole), *arrays = received(sys.stdin.buffer)
        except EOFError:
            return
        most = min(int(top_k), arrays[0].shape[-1])  # as its engine does
        ids, error = answer((float(temperature), most, float(top_p)), bool(whole), arrays)
        send(ANSWERS, ids, np.frombuffer(error, np.uint8))


if __name__ == "__main__":
    main()
