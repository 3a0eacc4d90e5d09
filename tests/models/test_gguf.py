"""Models in GGUF files: the same model as the one that was written, or a message that says why not."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
import torch

from helpers import gguf_writer, tiny
from lgym.models import LLMConfig, ModelNotFoundError, build_llm, load_model_and_tokenizer
from lgym.models import gguf as gguf_module
from lgym.models.gguf import converted_file
from lgym.policies.text_generation import stop_ids
from lgym.types import ConfigError

MESSAGES = [{"role": "user", "content": "Turn  é"}]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("LGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def build(path: Path):
    return build_llm(LLMConfig(model=str(path)), dtype=torch.float32, device=torch.device("cpu"))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[2, 70, 71, 72, 73, 74]])).logits


def test_a_file_is_the_model_that_was_written(tmp_path):
    """Logits, context, tokens, special tokens and template."""
    llm = build(gguf_writer.write_llama(tmp_path / "tiny.gguf"))
    torch.testing.assert_close(logits(llm.model), logits(tiny.causal_lm()), rtol=1e-4, atol=1e-4)
    assert llm.context_length == 2048
    expected = tiny.tokenizer()
    text = expected.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert llm.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) == text
    assert llm.tokenizer(text).input_ids == expected(text).input_ids
    assert (
        llm.tokenizer.special_tokens_map.items()
        >= {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}.items()
    )


def test_gemmas_responses_end_with_their_turn(tmp_path):
    """Its files name `<eos>`, token 1, as the end; its template ends a turn with token 5."""
    with pytest.warns(UserWarning, match="sliding window"):
        llm = build(gguf_writer.write_gemma(tmp_path / "gemma.gguf"))
    torch.testing.assert_close(logits(llm.model), logits(gguf_writer.gemma()), rtol=1e-4, atol=1e-4)
    assert stop_ids(llm) == {1, 5}
    prompt = llm.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert prompt == "<bos><start_of_turn>user\nTurn  é<end_of_turn>\n<start_of_turn>model\n"


def test_a_window_that_cuts_the_context_is_said(tmp_path):
    """Of 1,024 tokens 128 are left, and Llama has no window."""
    message = r"window of 128 tokens.* context of 1,024: .* at most 128 tokens"
    with pytest.warns(UserWarning, match=message):
        assert build(gguf_writer.write_gemma(tmp_path / "gemma.gguf")).context_length == 128


@pytest.mark.filterwarnings("error:.*window.*:UserWarning")
def test_no_window_is_not_said(tmp_path):
    assert build(gguf_writer.write_llama(tmp_path / "tiny.gguf")).context_length == 2048


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path, cache, capsys):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    first = converted_file(path)
    assert capsys.readouterr().err.startswith(f"Converting tiny.gguf once, to {first}")
    assert converted_file(path) == first
    assert "Converting" not in capsys.readouterr().err
    os.utime(path, ns=(0, 0))
    second = converted_file(path)
    assert sorted(cache.iterdir()) == sorted([first, second])


def test_another_process_that_was_first_is_left_alone(tmp_path, monkeypatch):
    """It has the folder open: replacing it would take its weights away."""
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    load = gguf_module._load

    def late(source, architecture):
        monkeypatch.setattr(gguf_module, "_load", load)
        mark = converted_file(source) / "mark"
        mark.touch()
        return load(source, architecture)

    monkeypatch.setattr(gguf_module, "_load", late)
    assert (converted_file(path) / "mark").exists()


def test_what_a_folder_lacked_is_made_anew(tmp_path):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    folder = converted_file(path)
    (folder / "config.json").unlink()
    assert (converted_file(path) / "config.json").exists()


def test_a_loop_of_ones_own_takes_a_file_too(tmp_path):
    model, tokenizer = load_model_and_tokenizer(str(gguf_writer.write_llama(tmp_path / "tiny.gguf")))
    assert next(model.parameters()).dtype == torch.float32
    assert tokenizer.chat_template == tiny.TEMPLATE


def test_a_file_that_is_not_there(tmp_path):
    """Not the list of registry names: a path was meant."""
    with pytest.raises(ModelNotFoundError, match=rf"There is no file {tmp_path}/none.gguf"):
        build(tmp_path / "none.gguf")


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"model.safetensors is no GGUF file: it begins with b'weig'"):
        build(tmp_path / "model.safetensors")


@pytest.mark.parametrize("share", [0.00001, 0.01, 0.5, 0.999])
def test_a_file_that_is_not_whole(tmp_path, cache, share):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: 4 + int(len(whole) * share)])
    with pytest.raises(ConfigError, match=r"tiny.gguf \([\d,]+ bytes\) is damaged or not whole"):
        build(path)
    assert not cache.exists()


def test_an_architecture_that_transformers_does_not_read(tmp_path, cache):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf", architecture="grok")
    with pytest.raises(ConfigError, match=r"architecture 'grok', which transformers [\d.]+ could not read"):
        build(path)
    assert not cache.exists()


def replace_in_header(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("general.architecture", "'general.architecture'"),  # LookupError of the header
        ("tokenizer.ggml.tokens", r"could not read \(KeyError: 'tokens'\)"),
        ("tokenizer.ggml.model", r"could not read \(ValueError: "),
        ("llama.embedding_length", r"could not read \(RuntimeError: "),
    ],
)
def test_a_header_that_lacks_an_entry(tmp_path, cache, key, reason):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    replace_in_header(path, key.encode(), b"-" + key.encode()[1:])
    with pytest.raises(ConfigError, match=rf"tiny.gguf.* {reason}"):
        build(path)
    assert not cache.exists()


def test_a_header_with_a_wrong_length(tmp_path, cache):
    """At once: the reader would count to it. An array's key is followed by the types array and string, 9
    and 8, and its length."""
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    start = b"tokenizer.ggml.tokens" + struct.pack("<II", 9, 8)
    length = path.read_bytes().partition(start)[2][:8]
    replace_in_header(path, start + length, start + struct.pack("<Q", 2**40))
    with pytest.raises(ConfigError, match=r"tiny.gguf .* is damaged or not whole.* behind its end"):
        build(path)


def test_a_part_of_a_model(tmp_path, cache):
    """transformers draws the weights that are missing at random."""
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf", without="layers.1.mlp")
    with pytest.raises(
        ConfigError, match=r"lacks 3 weights of its model, such as model.layers.1.mlp.down_proj"
    ):
        build(path)
    assert not cache.exists()


def test_without_the_package_gguf(tmp_path, monkeypatch):
    path = gguf_writer.write_llama(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        build(path)
