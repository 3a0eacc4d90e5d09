"""Compares llama.cpp's probabilities with lgym's, in all 280 states of Blackjack.

    pip install xllamacpp
    python scripts/llama_cpp_table.py blackjack --types f32 f16 q8_0

llama.cpp (here as the package xllamacpp) reads the file that `lgym export` writes, and answers chat messages:
its own tokenizer and chat template, its own arithmetic. lgym computes the adapter on its base in fp32. Prints
a row per type as Markdown.

llama.cpp's flash attention adds up in half precision, and its cache of keys and values is in half precision
too: here they are off and in fp32, so that the file is what is compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from export_table import HEADER, asked, row
from lgym.callbacks.exact_evaluation import action_probabilities
from lgym.cli.export import find
from lgym.data import RolloutDataModule
from lgym.envs import blackjack
from lgym.models.export import GGUF_TYPES
from lgym.modules import LLMLearner
from lgym.pretrained import agent_options

ANSWERS = ("stay", "hit")
FORCED = 100.0
"""Added to the logits of the answers, so that llama.cpp samples nothing else."""


class Expected(NamedTuple):
    """What llama.cpp is asked and should say.

    Attributes:
        messages: of a chat, for every state.
        answer_ids: the tokens of the answers, one each.
        probabilities: lgym's, [280, 2].
    """

    messages: list[list[dict[str, str]]]
    answer_ids: list[int]
    probabilities: Tensor


def expected(data: RolloutDataModule, module: LLMLearner) -> Expected:
    """The chat messages of every state, and lgym's probabilities of the answers."""
    states = blackjack.states()
    prompts = data.prompts(states)
    messages = [
        [
            {"role": "system", "content": data.agent.system_prompt},
            {"role": "user", "content": prompt.observation_text},
        ]
        for prompt in prompts
    ]
    ids = dict(zip(prompts[0].candidates, prompts[0].candidate_ids, strict=True))
    probabilities = torch.from_numpy(action_probabilities(data, module, states, len(ANSWERS)))
    return Expected(messages, [token for answer in ANSWERS for token in ids[answer]], probabilities)


def chat_probabilities(file: Path, messages: Sequence[Any], answer_ids: Sequence[int]) -> Tensor:
    """llama.cpp's [n, 2] probabilities of the answers, of those two alone."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_ctx = 1024
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    request = {
        "max_tokens": 1,
        "logit_bias": [[token, FORCED] for token in answer_ids],
        "logprobs": True,
        "top_logprobs": len(answer_ids),
        "post_sampling_probs": True,
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    }
    found = []
    for chat in tqdm(messages, desc=file.name, unit="state", leave=False, disable=None):
        reply = server.handle_chat_completions({"messages": chat, **request})
        tokens = reply["choices"][0]["logprobs"]["content"][0]["top_probs"]
        by_token = {token["id"]: token["prob"] for token in tokens}
        found.append([by_token[token] for token in answer_ids])
    return torch.tensor(found, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", help="one that plays Blackjack: its name, or the folder of its run")
    parser.add_argument("--states", type=int, default=280, help="ask only the first ones")
    parser.add_argument("--types", nargs="+", choices=list(GGUF_TYPES), default=["f32", "f16", "q8_0"])
    arguments = parser.parse_args()
    wanted = asked(agent_options(arguments.agent), expected)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        export = find(Path(arguments.agent), None, "f32", Path(folder))
        for export.kind in arguments.types:
            file = export.write_gguf()
            got = chat_probabilities(file, wanted.messages[: arguments.states], wanted.answer_ids)
            rows.append(row(f"gguf, {export.kind}", file, got, wanted.probabilities[: arguments.states]))
            file.unlink()
    print(f"\n{min(arguments.states, 280)} states\n")
    for cells in [HEADER, ("---",) * len(HEADER), *rows]:
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
