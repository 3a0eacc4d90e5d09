"""A tokenizer in a GGUF file."""

import json
from typing import Any

import gguf

from lgym.types import ConfigError

QWEN_PATTERN = r"\p{N}|"  # of single digits
LLAMA3_PATTERN = r"\p{N}{1,3}"


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Any, size: int) -> None:
    """Adds a byte-level BPE tokenizer: tokens, merges, special tokens and chat template.

    Args:
        writer: of the file.
        tokenizer: of transformers.
        size: rows of the model's embeddings; those without a token are filled up.

    Raises:
        ConfigError: if it is of another kind.
    """
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    model = description["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise _other_kind(f"its model is {model['type']}")
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    special = {entry["id"] for entry in description["added_tokens"] if entry["special"]}
    added = {entry["id"] for entry in description["added_tokens"]} - special
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting_rule(description["pre_tokenizer"]))
    writer.add_token_list([tokens.get(index, f"[PAD{index}]") for index in range(size)])
    writer.add_token_types(
        [
            kinds.UNUSED if index not in tokens
            else kinds.CONTROL if index in special
            else kinds.USER_DEFINED if index in added
            else kinds.NORMAL
            for index in range(size)
        ]
    )  # fmt: skip
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    )
    for name in ("bos", "eos", "pad", "unk"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    writer.add_add_bos_token(False)  # the chat template writes it
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def splitting_rule(pre_tokenizer: Any) -> str:
    """llama.cpp's name for the way in which a text is split before merging.

    Raises:
        ConfigError: if it is not known.
    """
    parts = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    kinds = [part and part["type"] for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = str(parts[0]["pattern"].get("Regex"))
        for part, name in ((LLAMA3_PATTERN, "llama-bpe"), (QWEN_PATTERN, "qwen2")):
            if part in pattern:
                return name
    raise _other_kind(f"it splits texts by {' and '.join(map(str, kinds))}")


def _other_kind(reason: str) -> ConfigError:
    return ConfigError(
        f"The tokenizer cannot be written to a GGUF file here: {reason}; the byte-level BPE of GPT-2, "
        "SmolLM, Qwen and Llama 3 can. Export the model as `merged`; llama.cpp's convert_hf_to_gguf.py reads "
        "that folder."
    )
