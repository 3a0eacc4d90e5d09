"""Null on the command line, which `jsonargparse` makes a word on its way to an option of an option."""

from __future__ import annotations

import pytest
import yaml

from lgym.cli import main

NULLS = (
    "model.gamma",
    "model.lr_scheduler",
    "model.loss.target_kl",
    "model.llm.lora.last_blocks",
    "model.llm.lora",
)


@pytest.mark.parametrize("name", NULLS)
def test_null_is_null_at_every_depth(name, capsys):
    given = {"model.loss.target_kl": "0.1"} | {name: "null"}
    options = [f"--{key}={value}" for key, value in given.items()]
    with pytest.raises(SystemExit):
        main(["fit", "--model=lgym.modules.PPO", "--data.env=Echo-v0", *options, "--print_config"])
    found = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    for key in name.split(".")[1:]:
        found = found[key]
    assert found is None
