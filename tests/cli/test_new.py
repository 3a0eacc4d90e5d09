"""`lgym new`: a YAML that says what training without it would do, and an agent's file that reads alike."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from helpers import spaces  # noqa: F401  (registers environments)
from helpers.runs import scalars
from lgym.agents import GeneralAgent
from lgym.cli import main
from lgym.cli.command_line import LgymCLI
from lgym.cli.new import changed, horizon, yaml_lines
from lgym.cli.words import DEFAULT_MODEL, written_out
from lgym.data import RolloutDataModule
from lgym.envs import make_env
from lgym.modules import LossConfig

PPO = f"--model={DEFAULT_MODEL}"
TINY = ("--model.init_args.llm.lora.r=4", "--model.init_args.llm.value_hidden_size=16")


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """In a folder of its own, with less random play."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lgym.data.measuring.MEASURED_TURNS", 600)
    monkeypatch.setattr("lgym.data.measuring.MEASURED_EPISODES", 12)
    monkeypatch.setattr("lgym.data.measuring.MEASURED_SECONDS", 600.0)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.fixture
def settings(monkeypatch):
    """The settings with which a command line would train, without training."""

    def run(*args: str) -> dict[str, object]:
        seen = {}

        def fit(trainer, model, datamodule=None, **kwargs):
            data = datamodule
            data.trainer = trainer
            data.choose_settings(model, trainer.strategy.root_device)
            optimizer = model.make_optimizer([torch.nn.Parameter(torch.zeros(1))])
            rates = model.make_lr_scheduler and model.make_lr_scheduler(optimizer)
            names = (*RolloutDataModule.__dataclass_fields__,)
            seen.update({f"data.{name}": getattr(data, name) for name in names})
            seen["data.agent"] = type(data.agent)
            seen["resolution"] = getattr(data.agent.observation_settings, "resolution", None)
            seen["data.exploration_bonus"] = data.exploration_bonus and vars(data.exploration_bonus)
            seen["data.demonstrations"] = [vars(each) for each in data.demonstrations or ()]
            names = ("gamma", "gae_lambda", "loss_config", "sft_lr_scale")
            seen.update({name: getattr(model, name, None) for name in names})
            known = replace(model.critic, value_lr_scale=model.value_lr_scale)
            seen["critic"] = known if model.has_critic else None
            seen["class"], seen["llm"] = type(model), model.llm_config
            seen["optimizer"] = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
            seen["schedule"] = rates and [rates.lr_lambdas[0](rollout) for rollout in range(120)]
            for name in ("max_epochs", "check_val_every_n_epoch", "gradient_clip_val"):
                seen[name] = getattr(trainer, name)

        with monkeypatch.context() as patch:
            patch.setattr("lgym.cli.trainer.LgymTrainer.fit", fit)
            main(["fit", "--trainer.accelerator=cpu", *args])
        return seen

    return run


@pytest.mark.parametrize(
    ("env", "algorithm", "policy"),
    [
        ("CliffWalking-v1", "PPO", "Candidate"),
        ("MountainCar-v0", "PPO", "Candidate"),
        ("Robot-v0", "PPO", "Candidate"),
        ("Blackjack-v1", "PPO", "Generation"),
        ("Blackjack-v1", "GRPO", "Generation"),
        ("Blackjack-v1", "A2C", "Generation"),
    ],
)
def test_the_yaml_trains_as_fit_alone_would(settings, model_folder, monkeypatch, env, algorithm, policy):
    """Catches a number that is written otherwise than it is meant, or one that is left out and falls to
    another default."""
    monkeypatch.setattr("lgym.data.random_play.RandomPlay.turn_seconds", 1e-4)  # else that of this moment
    model = f"--model.init_args.llm.model={model_folder}"
    more = ["--data.target_rollout_seconds=1"] if env == "Robot-v0" else []
    module = f"--model=lgym.modules.{algorithm}"
    more.append(f"--model.init_args.policy=lgym.policies.{policy}Policy")
    main(["new", env, "--trainer.accelerator=cpu", module, model, *more])
    (path,) = Path().glob("*.yaml")
    alone = settings(module, model, f"--data.env={env}", *more)
    written = settings("--config", str(path), *more)
    assert (alone["resolution"] is not None) == (env == "Robot-v0")
    assert (alone["data.frame_skip"] > 1) == (env == "MountainCar-v0")
    differing = {name: (alone[name], written[name]) for name in alone if alone[name] != written[name]}
    assert differing == {}


def test_the_yaml_says_why(capsys, model_folder):
    """Catches numbers without their reasons, and a next step that is not said."""
    main(["new", "Blackjack-v1", "--trainer.accelerator=cpu", f"--model.init_args.llm.model={model_folder}"])
    text = Path("blackjack.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["data"]["env"] == "Blackjack-v1"
    for name in ("num_envs", "turns_per_rollout", "update_epochs", "prompts_per_pass", "num_minibatches"):
        assert f"  {name}: {values['data'][name]} # " in text
    said = capsys.readouterr().out
    assert "Written: blackjack.yaml" in said
    assert "lgym fit --config blackjack.yaml" in said
    assert not Path("runs").exists()


def test_the_yaml_has_what_people_change_and_nothing_else(model_folder):
    """Catches defaults that are taken for given settings: they hid the learning rate. Precision is left to
    the machine that it runs on."""
    model = f"--model.init_args.llm.model={model_folder}"
    given = ("--model.init_args.critic.detach_value=true", "--data.num_envs=6")
    main(["new", "Blackjack-v1", "--trainer.accelerator=cpu", "--model=lgym.modules.PPO", model, *given])
    values = yaml.safe_load(Path("blackjack.yaml").read_text())
    settings = values["model"]["init_args"]
    assert settings["optimizer"]["init_args"]["lr"] == 8e-4
    assert settings["llm"] == {"model": str(model_folder)}
    assert settings["critic"] == {"value_coef": 0.5, "value_warmup": 1, "detach_value": True}
    assert values["data"]["num_envs"] == 6
    assert "precision" not in values["trainer"]


def test_the_yaml_trains(model_folder, tmp_path):
    """Catches a YAML that parses and does not run."""
    main(["new", "Blackjack-v1", "--trainer.accelerator=cpu", f"--model.init_args.llm.model={model_folder}"])
    options = [
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=1",
        "--trainer.enable_progress_bar=false",
        *TINY,
    ]
    small = ["--data.num_envs=8", "--data.turns_per_rollout=64", "--data.eval_episodes=4"]
    main(["fit", "--config", "blackjack.yaml", *options, *small])
    assert "rollout/return_mean" in scalars(tmp_path / "runs" / "blackjack")


@pytest.mark.parametrize("present", ["blackjack.yaml", "words.py"])
def test_a_file_that_is_there_is_not_overwritten(capsys, model_folder, present):
    """Catches an afternoon's settings lost, or one of two files written."""
    Path(present).write_text("mine")
    model = f"--model.init_args.llm.model={model_folder}"
    with pytest.raises(SystemExit) as stop:
        main(["new", "Blackjack-v1", "--trainer.accelerator=cpu", model, "--agent=words.py"])
    assert stop.value.code not in (0, None)
    assert f"{present} is there already" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == [present]
    assert Path(present).read_text() == "mine"


@pytest.mark.parametrize("agent", ["words.txt", "my-words.py"])
def test_an_agent_that_no_yaml_could_name_is_refused(capsys, model_folder, agent):
    """Catches a file whose class cannot be imported."""
    model = f"--model.init_args.llm.model={model_folder}"
    with pytest.raises(SystemExit):
        main(["new", "Blackjack-v1", "--trainer.accelerator=cpu", model, f"--agent={agent}"])
    assert f"--agent is {agent}" in capsys.readouterr().err
    assert not list(Path().iterdir())


@pytest.mark.parametrize("env", ["CliffWalking-v1", "Robot-v0", "Pair-v0", "CartPole-v1"])
def test_the_agents_file_reads_alike(env, settings, model_folder, monkeypatch):
    """Catches another task, other actions or other numbers than those of the agent that it is made from."""
    model = f"--model.init_args.llm.model={model_folder}"
    more = ["--data.target_rollout_seconds=1"] if env == "Robot-v0" else []
    name = f"words_of_{env.partition('-')[0].lower()}"
    options = [f"--agent={name}.py", "--out=run.yaml", "--trainer.accelerator=cpu", model, *more]
    main(["new", env, *options])
    values = yaml.safe_load(Path("run.yaml").read_text())
    module, _, class_name = values["data"]["agent"]["class_path"].rpartition(".")
    assert module == name
    alone, written = settings(model, f"--data.env={env}", *more), settings("--config=run.yaml", *more)
    assert written["data.agent"].__name__ == class_name
    agents = [GeneralAgent(), written["data.agent"]()]
    game = make_env(env)
    game.action_space.seed(0)
    for agent in agents:
        agent.bind(game)
    if alone["resolution"] is not None:
        agents[0].resolve(alone["resolution"])
    observation, info = game.reset(seed=0)
    for _ in range(20):
        texts = {agent.format_observation(observation) for agent in agents}
        assert len(texts) == 1
        assert len({tuple(agent.candidates(observation, info) or ()) for agent in agents}) == 1
        observation, _, terminated, truncated, info = game.step(game.action_space.sample())
        if terminated or truncated:
            observation, info = game.reset()
    assert len({agent.system_prompt for agent in agents}) == 1
    assert len({str(agent.parse(agents[0].actions[-1])) for agent in agents}) == 1


def test_labels_stay_texts_in_the_yaml():
    """YAML reads 0 as a number and on as yes, which are no labels."""
    settings = {"resolution": {"0": 0.1, "": 0.2, "on": 0.5, "a: b": 1.0, "robot 0": 2.0}}
    assert yaml.safe_load("\n".join(yaml_lines(settings, {}))) == settings


def test_the_agents_file_keeps_what_was_given(settings, model_folder):
    """Such as a part that is left out: the texts are those that were measured."""
    model = f"--model.init_args.llm.model={model_folder}"
    agent = "--data.agent=lgym.agents.GeneralAgent"
    given = ["--data.agent.init_args.drop=[velocity]", "--data.agent.init_args.pattern=x(.*)"]
    files = ["--agent=words_of_2048.py", "--out=new/run.yaml", "--trainer.accelerator=cpu"]
    main(["new", "MountainCar-v0", *files, model, agent, *given])
    written = settings("--config=new/run.yaml")["data.agent"]()
    game = make_env("MountainCar-v0")
    written.bind(game)
    assert "velocity" not in written.format_observation(game.reset(seed=0)[0])
    assert written.pattern == "x(.*)"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["new", "Taxi-v3", "--out=a"], ["new", PPO, "--data.env", "Taxi-v3", "--out=a"]),
        (["new", "--data.env=Taxi-v3"], ["new", PPO, "--data.env=Taxi-v3"]),
        (["new"], ["new", PPO]),
        (["fit", "Taxi-v3"], ["fit", PPO, "Taxi-v3"]),
        (["fit", "--help"], ["fit", "--help"]),
        (["--version"], ["--version"]),
        (["fit", "--model", "GRPO"], ["fit", "--model", "GRPO"]),
        (["fit", "--model.gamma=1"], ["fit", PPO, "--model.gamma=1"]),
        (["fit", "--config", "no_file.yaml"], ["fit", PPO, "--config", "no_file.yaml"]),
    ],
)
def test_the_environment_may_stand_alone(args, expected):
    """Catches an id that is taken for an option of another command."""
    assert written_out(args, LgymCLI.subcommands()) == expected


@pytest.mark.parametrize(
    ("settings", "usual", "expected"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}}, {"b": {"d": 3}}),
        ({"a": {"class_path": "A", "x": 1}}, {"a": {"class_path": "B", "x": 1}}, None),
        ({"a": {"x": 1}}, {"a": None}, None),
        ({"a": {"x": 1}}, {"a": {"x": 1}}, {}),
    ],
)
def test_what_was_given(settings, usual, expected):
    """Catches half of an object of another class."""
    assert changed(settings, usual) == (settings if expected is None else expected)


@pytest.mark.parametrize("option", ["--config", "-c", "--config="])
def test_another_algorithm_has_none_of_the_settings_of_ppo(settings, model_folder, option):
    """Catches PPO's divergence in a run of GRPO: as the parser's default it stayed behind where another class
    was named."""
    path = Path("grpo.yaml")
    llm = {"model": str(model_folder)}
    model = {"class_path": "lgym.modules.GRPO", "init_args": {"llm": llm, "loss": {"clip_high": 0.28}}}
    data = {"env": "Blackjack-v1", "episodes_per_rollout": 8, "group_size": 2}
    path.write_text(yaml.safe_dump({"model": model, "data": data}))
    named = [f"{option}{path}"] if option.endswith("=") else [option, str(path)]
    seen = settings(*named)
    assert seen["loss_config"] == LossConfig(clip_high=0.28)
    assert seen["optimizer"]["initial_lr"] == 8e-4
    assert seen["schedule"][2] == pytest.approx(1.0)  # behind two rollouts of warm-up


@pytest.mark.parametrize(
    ("gamma", "words"), [(1, "any number of turns"), (0.99, "100 turns"), (0.5, "2 turns")]
)
def test_the_horizon_in_words(gamma, words):
    """Catches a division by 0 where nothing is discounted: 1 / (1 - gamma) turns."""
    assert horizon(gamma) == words
