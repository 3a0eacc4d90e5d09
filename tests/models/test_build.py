"""Finding and loading models."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from lgym.cache import cache_folder
from lgym.models import LLMConfig, LoraSettings, ModelNotFoundError, build_llm
from lgym.models import build as build_module
from lgym.models.build import assemble_llm
from lgym.models.llm import ValueHeadLLM
from lgym.models.registry import DEFAULT, REGISTRY, converted_folder, find_entry
from lgym.types import ConfigError


def test_a_folder_is_a_model(model_folder):
    """With the weights that were saved in it."""
    llm = build_llm(LLMConfig(model=str(model_folder)), dtype=torch.float32, device=torch.device("cpu"))
    expected = tiny.causal_lm().get_input_embeddings().weight
    assert torch.equal(llm.causal_lm.get_input_embeddings().weight, expected)
    assert llm.context_length == 2048
    assert not llm.causal_lm.get_input_embeddings().weight.requires_grad


def test_a_model_that_is_nowhere_says_where_lgym_looked(monkeypatch):
    """A registry name with a package: folder, package and Hub are all named."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(build_module, "converted_folder", lambda package: None)
    monkeypatch.setenv("HF_HOME", "/nowhere")
    config = LLMConfig(model="smollm2-360m-instruct")
    with pytest.raises(ModelNotFoundError, match=r"a folder .*SmolLM2-360M-Instruct"):
        build_llm(config, dtype=torch.float32, device=torch.device("cpu"))


def test_the_hubs_token_is_passed_on(monkeypatch):
    """Gated models cannot be had without it."""
    seen = {}

    def refuse(source, **options):
        seen.update(options)
        raise OSError("gated")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(build_module.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(ModelNotFoundError) as error:
        build_llm(LLMConfig(model="meta-llama/x"), dtype=torch.float32, device=torch.device("cpu"))
    assert seen["token"] == "hf_secret"
    assert "hf_secret" not in str(error.value)


def test_names_and_ids_find_their_entry():
    """A Hub id gets the same defaults as the short name; an unknown model a sound default."""
    assert find_entry("SmolLM2-135M-Instruct") is REGISTRY["smollm2-135m-instruct"]
    assert find_entry("microsoft/phi-2") is REGISTRY["phi-2"]
    assert find_entry("someone/something") is DEFAULT
    assert DEFAULT.lora_targets == "all-linear"


def test_every_family_that_was_promised_has_an_entry():
    """Each with its Hub id and adapters."""
    for family in (
        "smollm2-135m",
        "smollm2-360m",
        "smollm2-1.7b",
        "smollm-1.7b",
        "tinyllama",
        "qwen2-",
        "qwen2.5-",
    ):
        assert any(name.startswith(family) for name in REGISTRY), family
    for family in ("qwen3-", "phi-2", "phi-3-mini", "llama-3", "gpt2"):
        assert any(name.startswith(family) for name in REGISTRY), family
    assert all("/" in entry.hub_id for entry in REGISTRY.values())


def test_a_base_model_gets_the_plain_template():
    """GPT-2 has no chat template, and transformers raises without one."""
    llm = assemble_llm(tiny.causal_lm(), tiny.tokenizer(template=None), LLMConfig(model="tiny"), DEFAULT)
    text = llm.tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == "<|im_start|>System: S\nUser: U\nAssistant:\n"  # the first token is this tokenizer's BOS


def test_adapters_can_be_chosen():
    """The registry's targets are overridable, rank and scale too."""
    llm = tiny.llm(lora=LoraSettings(r=2, alpha=6, target_modules=["q_proj"]))
    trained = {name for name, p in llm.named_parameters() if p.requires_grad and "lora" in name}
    assert len(trained) == 4  # A and B in each of two layers
    assert all("q_proj" in name for name in trained)
    layer = next(m for m in llm.modules() if hasattr(m, "lora_A"))
    assert layer.scaling["default"] == 3.0


def test_all_blocks_can_be_named():
    names = [
        {name for name, _ in tiny.llm(lora=LoraSettings(r=2, last_blocks=n)).named_parameters()}
        for n in (None, 2)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("targets", [None, ["q_proj", "down_proj"]])
def test_adapters_in_the_last_blocks_learn_as_if_they_were_in_all(targets):
    """Those below have none, nothing is computed backward there, and the gradients of those above are the
    same."""

    def gradients(last_blocks):
        lora = LoraSettings(r=2, target_modules=targets, last_blocks=last_blocks)
        llm = assemble_llm(
            tiny.causal_lm().double(), tiny.tokenizer(), LLMConfig(model="tiny", lora=lora), DEFAULT
        ).double()
        adapters = {name: p for name, p in llm.named_parameters() if "lora" in name}
        with torch.no_grad():
            for name in adapters:
                draw = torch.Generator().manual_seed(sum(map(ord, name)))
                adapters[name].copy_(
                    torch.randn(adapters[name].shape, generator=draw) * (".layers.1." in name)
                )
        below = llm.causal_lm.get_submodule("model.layers.0")
        entered = []
        below.register_full_backward_pre_hook(lambda *_: entered.append(True))
        hidden, _ = llm.hidden_states([(1, 2, 3, 4), (1, 2, 5, 6)], [3, 3], row_length=8)
        hidden.square().sum().backward()
        assert bool(entered) is (last_blocks is None)
        return {name: p.grad for name, p in adapters.items()}

    whole, part = gradients(None), gradients(1)
    assert sorted(part) == sorted(name for name in whole if ".layers.1." in name)
    assert len(part) < len(whole)
    for name, gradient in part.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, whole[name])


def test_blocks_that_cannot_be_chosen():
    with pytest.raises(
        ValueError, match=r"last_blocks is 1 and lora.target_modules is the pattern '.*_proj'"
    ):
        tiny.llm(lora=LoraSettings(r=2, target_modules=".*_proj", last_blocks=1))
    for few in (0, -1):
        with pytest.raises(ValueError, match=f"last_blocks is {few}; it must be 1 or more"):
            LoraSettings(last_blocks=few)
    with pytest.raises(ValueError, match="last_blocks is 3, and the model has 2 blocks: set it to at most 2"):
        tiny.llm(lora=LoraSettings(r=2, last_blocks=3))


def test_dropout_of_the_base_model_is_off():
    """GPT-2 trains with dropout 0.1: the policy that learns would not be the one that played."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=260, n_embd=32, n_layer=1, n_head=2))
    llm = assemble_llm(
        model, tiny.tokenizer(), LLMConfig(model="gpt2", lora=LoraSettings(r=2)), DEFAULT
    ).train()
    a, _ = llm.hidden_states([(1, 2, 3)], [3], row_length=8)
    b, _ = llm.hidden_states([(1, 2, 3)], [3], row_length=8)
    assert torch.equal(a, b)


def test_no_layers_are_dropped():
    """OPT may leave whole blocks out in training, by a rate that is not called dropout."""
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": 260, "hidden_size": 32, "ffn_dim": 32, "word_embed_proj_dim": 32}
    model = OPTForCausalLM(OPTConfig(**sizes, num_hidden_layers=4, num_attention_heads=2, layerdrop=0.9))
    ids = torch.tensor([[3, 4, 5]])
    expected = model.eval()(ids).logits
    build_module._disable_dropout(model)
    assert torch.equal(model.train()(ids).logits, expected)


@pytest.mark.parametrize("family", ["mixtral", "phimoe"])
def test_routers_choose_without_noise(family):
    """Mixtral's input may have noise in training, and PhiMoE samples its experts: the policy that learned was not
    the one that played."""
    import transformers

    sizes = {"vocab_size": 260, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.3}
    make = {"mixtral": transformers.MixtralConfig, "phimoe": transformers.PhimoeConfig}[family]
    config = make(**sizes, **heads, num_local_experts=4, router_jitter_noise=0.3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    llm = assemble_llm(
        model, tiny.tokenizer(), LLMConfig(family, lora=LoraSettings(target_modules=["q_proj"])), DEFAULT
    )
    prompt = tuple(range(3, 40))
    played, learned = (
        llm.train(mode).hidden_states([prompt], [1], row_length=64)[0] for mode in (False, True)
    )
    assert torch.equal(played, learned)


def test_a_model_that_cannot_be_run_says_why(monkeypatch):
    """It was said to scale its logits, and to differ by inf; also where memory ran out."""

    def fail(self, *_, **__):
        raise error

    monkeypatch.setattr(ValueHeadLLM, "hidden_states", fail)
    error = KeyError("what")
    with pytest.raises(
        ConfigError, match=r"tiny \(llama\): lgym cannot run it \(KeyError: 'what'\)"
    ) as raised:
        tiny.llm()
    assert raised.value.__cause__ is error
    error = torch.OutOfMemoryError("none is left")
    with pytest.raises(torch.OutOfMemoryError, match="none is left"):
        tiny.llm()


def test_a_package_that_is_not_installed_has_no_model():
    """Not an error: the Hub is asked next."""
    assert converted_folder("no-such-package-at-all") is None


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    """Home folders are small on some clusters."""
    monkeypatch.setenv("LGYM_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.parametrize(
    ("settings", "message"), [({"r": 0}, "lora.r is 0"), ({"dropout": 1.0}, "lora.dropout is 1.0")]
)
def test_bad_adapters_are_refused(settings, message):
    """Before anything is loaded."""
    with pytest.raises(ValueError, match=message):
        LoraSettings(**settings)


@pytest.mark.parametrize("family", ["bloom", "mamba"])
def test_a_model_that_cannot_share_runs_every_sequence_whole(family):
    """Bloom counts positions in its own mask and Mamba has no keys: said aloud, and as right as any other
    model."""
    from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    if family == "bloom":
        model = BloomForCausalLM(BloomConfig(vocab_size=260, hidden_size=32, n_layer=2, n_head=2))
        targets = ["query_key_value"]
    else:
        model = MambaForCausalLM(
            MambaConfig(vocab_size=260, hidden_size=32, num_hidden_layers=2, state_size=4)
        )
        targets = ["in_proj"]
    settings = LLMConfig(model=family, lora=LoraSettings(target_modules=targets))
    with pytest.warns(UserWarning, match=f"{family}.*run whole"):
        llm = assemble_llm(model.double().eval(), tiny.tokenizer(), settings, DEFAULT)
    sequences, prompts = [(5, 6, 7, 8, 9), (5, 6, 7), (5, 6, 7, 8, 4, 3)], [4, 3, 5]
    states, index = llm.hidden_states(sequences, prompts, row_length=64)
    for sequence, prompt, rows in zip(sequences, prompts, index, strict=True):
        own = llm.causal_lm.base_model(input_ids=torch.tensor([sequence])).last_hidden_state[0, prompt - 1 :]
        torch.testing.assert_close(states[rows], own, rtol=1e-5, atol=1e-6)


def test_convolutions_are_no_tree():
    """A short convolution reads its neighbours in the row, whoever they are; the probe allowed for as much as
    rounding to bf16 comes to, and let it pass for a tree."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    settings = LLMConfig(model="lfm2", lora=LoraSettings(target_modules=["q_proj"]))
    with pytest.warns(UserWarning, match="run whole"):
        llm = assemble_llm(Lfm2ForCausalLM(config).eval(), tiny.tokenizer(), settings, DEFAULT)
    assert llm.layout == "padded"


def test_adapters_that_do_not_fit_are_refused_for_the_right_reason():
    """It was said that "all-linear" names no layer, and to use "all-linear"."""
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=260, hidden_size=32, num_hidden_layers=2, state_size=4))
    with pytest.raises(
        ValueError, match=r"out_proj.*incompatible with Mamba.*Its linear layers are \['dt_proj', 'in_proj'"
    ):
        assemble_llm(model, tiny.tokenizer(), LLMConfig(model="mamba"), DEFAULT)
