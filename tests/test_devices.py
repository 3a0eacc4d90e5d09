"""Several processes from the command line: with one number changed, to the end, on from a checkpoint, and
when one dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy

from helpers import two_processes
from helpers.runs import assert_same_run, checkpoint, scalars
from lgym.cli import main
from lgym.models import LLMConfig
from lgym.modules.config_checks import require_strategy
from lgym.modules.fsdp2 import FSDP2Strategy
from lgym.types import ConfigError

HERE = Path(__file__).parent
YAML = """
trainer:
  accelerator: cpu
  enable_progress_bar: false
  max_epochs: 3
  check_val_every_n_epoch: 3
  callbacks: [{class_path: helpers.spoiler.Alike}]
model:
  class_path: lgym.modules.PPO
  init_args:
    llm: {lora: {r: 4}, value_hidden_size: 16}
    policy: {class_path: lgym.policies.CandidatePolicy, init_args: {length_normalization: token, temperature: 3}}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.005}}
data:
  env: helpers.echo:Counting-v0
  agent: helpers.echo.CountingAgent
  max_episode_steps: 5
  num_envs: 4
  turns_per_rollout: 24
  minibatch_size: 4
  eval_episodes: 13
  episodic_memory: {unit: turn, capacity: 20}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory, model_folder) -> Path:
    path = tmp_path_factory.mktemp("config") / "two.yaml"
    path.write_text(YAML.replace("llm: {", f"llm: {{model: {model_folder}, "))
    return path


def command(config: Path, root: Path, *words: str) -> list[str]:
    return ["-m", "lgym.cli", "fit", "--config", str(config), f"--trainer.default_root_dir={root}", *words]


def start(words: list[str], **changes: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **changes}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def fit(config: Path, root: Path, *words: str, status: int = 0) -> str:
    run = start(command(config, root, *words))
    said, _ = run.communicate(timeout=300)
    assert run.returncode == status, said
    return said


@pytest.fixture(scope="module")
def two(config, tmp_path_factory) -> tuple[Path, str]:
    """A run on two devices, and what it said."""
    root = tmp_path_factory.mktemp("two")
    return root, fit(config, root, "--trainer.devices=2")


def test_one_number_changed(two):
    """One log and one summary; each process plays its own share, with seeds of its own, and metrics are over
    both."""
    root, said = two
    assert said.count("Trained 3 rollouts") == 1
    assert [path.name for path in root.iterdir()] == ["version_0"]
    assert set(scalars(root)["rollout/turns"].values()) == {48.0}
    saved = checkpoint(root)["RolloutDataModule"]
    first, second = saved["ranks"]
    assert first["collector"]["runners"][0]["seed"] != second["collector"]["runners"][0]["seed"]
    assert first["rng"] != second["rng"]
    assert checkpoint(root)["lgym"]["rng"][0].keys() == checkpoint(root)["lgym"]["rng"][1].keys()


@pytest.mark.slow
def test_evaluation_plays_the_same_episodes_on_any_number_of_devices(two, config, tmp_path):
    """13 hands of Blackjack, 6 and 7 of them: the greedy policy's mean is one device's, whoever played
    which."""
    root, _ = two
    path = root / "version_0" / "checkpoints" / "last.ckpt"
    words = ["-m", "lgym.cli", "validate", "--config", str(config), f"--ckpt_path={path}"]
    words += [
        "--data.env=Blackjack-v1",
        "--data.agent=lgym.agents.BlackjackAgent",
        "--data.episodic_memory=null",
    ]
    for devices in (1, 2):
        run = start(
            [*words, f"--trainer.default_root_dir={tmp_path / str(devices)}", f"--trainer.devices={devices}"]
        )
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, said
    one, both = (scalars(tmp_path / str(devices)) for devices in (1, 2))
    for name in ("val_greedy/return_mean", "val_greedy/return_ci95", "val_greedy/length_mean"):
        (of_one,), (of_both,) = one[name].values(), both[name].values()
        assert of_one == pytest.approx(of_both, rel=1e-6)


def in_parts(rank: int, command: list[list[str]]) -> None:
    """Runs of the command line one after the other, as one of two processes that torchrun has started."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in ranks.items()})
    os.environ.update(TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="9")
    for words in command:
        main(words)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_resume_exactly(two, config, tmp_path, strategy):
    """The processes are torchrun's here and lgym's own there: also bit for bit, and with weights cut up
    from there on."""
    root, _ = two
    fit = [*command(config, tmp_path, "--trainer.devices=2")[2:]]
    parts = [[*fit, "--trainer.max_epochs=1"], [*fit, "--ckpt_path=last", f"--trainer.strategy={strategy}"]]
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    two_processes.in_two_processes(meeting, partial(in_parts, command=parts))
    assert_same_run(root, tmp_path, validated_alike=False)


@pytest.mark.slow
def test_all_skip_the_rest_of_a_rollout_together(config, tmp_path):
    """`target_kl`, where nothing pulls back: they take the same decision, and what is skipped moves nothing,
    also by momentum (Lightning has no word for that where there are several)."""
    apart = "--model.loss.target_kl=1e-6", "--model.loss.old_kl_coef=0", "--model.critic.value_warmup=0"
    fit(config, tmp_path, "--trainer.devices=2", *apart)
    steps = sum(scalars(tmp_path)["optim/steps"].values())
    state = checkpoint(tmp_path)["optimizer_states"][0]["state"]
    assert {float(own["step"]) for own in state.values()} == {steps}
    minibatches = checkpoint(tmp_path)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"]
    assert 3 <= steps < minibatches


GUARD = """
trainer:
  max_epochs: 5
  callbacks:
    - {class_path: lgym.callbacks.CollapseGuard, init_args: {max_kl: 0.0, max_rollbacks: 1}}
    - {class_path: helpers.spoiler.Alike}
"""


@pytest.mark.slow
def test_the_guard_acts_in_all_processes(config, tmp_path):
    """Every rollout shows a sign: it warns, lowers the rates, goes back, goes back and ends the run. All come
    to the same weights each time; resumed between the two, each has its own random state to go back to."""
    guard = tmp_path / "guard.yaml"
    guard.write_text(GUARD)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said = fit(config, whole, f"--config={guard}", "--trainer.devices=2", status=1)
    assert said.count("Collapse guard after rollout") == 4
    assert list(scalars(whole)["guard/level"].values()) == [1, 2, 3, 4]
    assert (whole / "version_0" / "collapse_report.md").exists()
    fit(config, parts, f"--config={guard}", "--trainer.devices=2", "--trainer.max_epochs=2")
    fit(config, parts, f"--config={guard}", "--trainer.devices=2", "--ckpt_path=last", status=1)
    assert_same_run(whole, parts, validated_alike=False)


@pytest.mark.slow
def test_two_torchrun_agents_on_the_loopback_are_two_devices(two, config, tmp_path):
    """As two nodes are: the same run, bit for bit."""
    root, _ = two
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [
        start(
            ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
            + ["--master-addr=127.0.0.1", f"--master-port={port}"]
            + command(config, tmp_path, "--trainer.devices=1", "--trainer.num_nodes=2")
        )
        for node in range(2)
    ]
    for agent in agents:
        said, _ = agent.communicate(timeout=300)
        assert agent.returncode == 0, said
    assert_same_run(root, tmp_path)


@pytest.mark.slow
def test_fewer_devices_go_on_soundly(two, config, tmp_path):
    """A node that comes back smaller: the run goes on, and says that it is not the same course."""
    root, _ = two
    path = root / "version_0" / "checkpoints" / "last.ckpt"
    said = fit(config, tmp_path, "--trainer.devices=1", "--trainer.max_epochs=4", f"--ckpt_path={path}")
    assert "was written by 2 processes and 1 go on from it" in said
    assert "Trained 4 rollouts" in said


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("which", ["first", "second"])
def test_a_run_ends_when_one_of_its_processes_dies(config, tmp_path, which):
    """Within a minute, with the reason; here while the other waits for it or plays."""
    run = start(command(config, tmp_path, "--trainer.devices=2", "--trainer.max_epochs=100000"))
    last = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 200
    while not last.exists() and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.2)
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children()]
    assert len(processes) == 2
    processes[which == "second"].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    said, _ = run.communicate(timeout=60)  # ends when both have closed the pipe
    assert time.monotonic() - killed < 60
    assert run.returncode != 0
    while (
        lives(processes[1]) and time.monotonic() - killed < 60
    ):  # it has closed the pipe, and is about to be gone
        time.sleep(0.1)
    assert not lives(processes[1])
    assert "another one has ended" in said or "is gone" in said or "terminated with code -9" in said
    assert torch.load(last, weights_only=True)["lgym"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_two_learn_values_from_replay_buffers_of_their_own(config, tmp_path, algorithm):
    """One process may hold enough a rollout before the other; `Alike` compares their weights behind each."""
    yaml = tmp_path / "dqn.yaml"
    yaml.write_text(
        config.read_text()
        .replace("lgym.modules.PPO", f"lgym.modules.{algorithm}")
        .replace(
            "  minibatch_size: 4\n",
            "  replay: {class_path: lgym.data.ReplayBuffer, init_args: "
            "{capacity: 100, minibatch_size: 8, updates_per_rollout: 4, learning_starts: 47}}\n",
        )
    )
    said = fit(yaml, tmp_path, "--trainer.devices=2")
    assert said.count("Trained 3 rollouts, 12 optimizer steps") == 1
    first, second = checkpoint(tmp_path)["RolloutDataModule"]["ranks"]
    assert not torch.equal(first["replay"]["columns"]["choices"], second["replay"]["columns"]["choices"])


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy])
def test_weights_cut_up_are_refused(strategy):
    with pytest.raises(ValueError, match="trainer.strategy: fsdp2"):
        require_strategy(strategy(), LLMConfig())
    require_strategy(DDPStrategy(), LLMConfig())


def test_frozen_weights_cut_up(two, config, tmp_path):
    """FSDP2 with the processes in lockstep: bit for bit the run of two that each hold all weights."""
    root, _ = two
    fit(config, tmp_path, "--trainer.devices=2", "--trainer.strategy=fsdp2")
    assert_same_run(root, tmp_path)


@pytest.mark.parametrize(
    ("settings", "named"), [({"lora": None}, "`lora: null` freezes none"), ({"quantization": "int8"}, "int8")]
)
def test_what_cannot_be_cut_up_is_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        require_strategy(FSDP2Strategy(), LLMConfig(**settings))
