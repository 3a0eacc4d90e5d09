"""Nothing that is loaded runs: not a checkpoint, not a model's weights, not a YAML but for the classes that
it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from helpers import tiny
from helpers.runs import checkpoint, lgym
from lgym.models import load_model_and_tokenizer


class Trap:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"echo sprung > {self.path}",)


@pytest.fixture
def failing(tmp_path, model_folder, capfd):
    """Runs a command that must fail, and returns what it said."""

    def run(command, model=model_folder, **options):
        with pytest.raises(SystemExit) as stop:
            lgym(command, tmp_path, model, **options)
        assert stop.value.code not in (0, None)
        said = capfd.readouterr().err
        assert "Traceback" not in said
        return said

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, model_folder):
    """A run of one rollout."""
    folder = tmp_path_factory.mktemp("run")
    lgym("fit", folder, model_folder, trainer__max_epochs=1)
    return folder


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "play"])
def test_a_checkpoint_that_would_run_something_is_refused(command, failing, tmp_path, run_folder):
    """A pickle may call any function with any arguments."""
    sprung, path = tmp_path / "sprung", tmp_path / "theirs.ckpt"
    torch.save(checkpoint(run_folder) | {"extra": Trap(sprung)}, path)
    options = {"trainer__enable_progress_bar": None, "trainer__max_epochs": None} if command == "play" else {}
    said = failing(command, ckpt_path=path, **options)
    assert "ckpt_path" in said
    assert "was not opened" in said
    assert not sprung.exists()
    torch.load(path, weights_only=False)
    assert sprung.exists()  # it is a trap


def test_checkpoints_are_never_opened_otherwise(failing, run_folder):
    """Not even where a YAML says so."""
    path = next(run_folder.rglob("last.ckpt"))
    assert "weights_only" in failing("validate", ckpt_path=path, weights_only="false")


def test_a_checkpoint_does_not_say_which_classes_run(tmp_path, model_folder, run_folder):
    """Lightning takes the class and its arguments from a checkpoint that has saved them."""
    path = tmp_path / "theirs.ckpt"
    chosen = {"_class_path": "lgym.modules.REINFORCE", "gamma": 0.5}
    torch.save(checkpoint(run_folder) | {"hyper_parameters": chosen}, path)
    lgym("fit", tmp_path, model_folder, ckpt_path=path, trainer__max_epochs=2)
    config = (tmp_path / "version_0" / "config.yaml").read_text()
    assert "lgym.modules.PPO" in config
    assert "REINFORCE" not in config


def test_weights_that_would_run_something_are_refused(tmp_path, failing):
    """A folder with a pytorch_model.bin instead of safetensors."""
    folder, sprung = tmp_path / "model", tmp_path / "sprung"
    tiny.save(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny.causal_lm().state_dict() | {"lm_head.bias": Trap(sprung)}, folder / "pytorch_model.bin")
    said = failing("fit", model=folder)
    assert str(folder) in said
    assert "safetensors" in said
    assert not sprung.exists()


def test_plain_weights_in_the_old_format_are_opened(tmp_path):
    """As tensors only."""
    tiny.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tiny.causal_lm().state_dict(), tmp_path / "pytorch_model.bin")
    model, _ = load_model_and_tokenizer(str(tmp_path))
    assert torch.equal(model.lm_head.weight, tiny.causal_lm().lm_head.weight)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['echo sprung > {}']",
        "!!python/object/new:os.system ['echo sprung > {}']",
    ],
)
def test_a_yaml_runs_nothing_by_its_tags(value, failing, tmp_path):
    """What YAML's unsafe loader makes of them."""
    sprung, path = tmp_path / "sprung", tmp_path / "theirs.yaml"
    path.write_text(f"seed_everything: {value.format(sprung)}\n")
    assert "python/object" in failing("fit", config=path)
    path.write_text(f"data:\n  env_kwargs: {{size: {value.format(sprung)}}}\n")
    assert "python/object" in failing("fit", config=path)
    assert not sprung.exists()


def test_a_models_own_code_does_not_run_unless_it_is_asked_for(tmp_path, failing):
    """`auto_map` in a model's config names a file beside it."""
    folder, sprung = tmp_path / "model", tmp_path / "sprung"
    tiny.save(folder)
    config = (folder / "config.json").read_text()
    config = config.replace(
        '"model_type": "llama"', '"model_type": "theirs", "auto_map": {"AutoConfig": "code.Config"}'
    )
    (folder / "config.json").write_text(config)
    (folder / "code.py").write_text(f"import os\nos.system('echo sprung > {sprung}')\nclass Config: pass\n")
    said = failing("fit", model=folder)
    assert "trust_remote_code" in said
    assert not sprung.exists()
