"""`lgym check --probe`: tiny environments, each with one thing to learn, that say which part of a new model,
policy or algorithm is broken."""

import copy
from dataclasses import dataclass
from typing import Any

import lightning as L

from lgym.agents import TextAgent
from lgym.cli.check.findings import Finding
from lgym.data import RolloutDataModule
from lgym.data.replay_buffer import ReplayBuffer
from lgym.envs.probe import PROBE
from lgym.modules import LLMLearner
from lgym.rollout import Prompt
from lgym.terminal import bar, say

SIGNS = ("red", "blue", "which one was it?")

VALUE_ERROR = 0.25
"""Largest error of a value, where right and wrong ones are 1 apart or more."""

GOOD_RETURN = 0.85
"""Mean return of sampled episodes that shows learning, of 1; chance has 0.5. A twentieth of the turns of DQN
explores."""


class ProbeAgent(TextAgent):
    """Reads a sign, and answers red or blue."""

    system_prompt = "You see a sign. Answer red or blue."
    actions = SIGNS[:2]

    def format_observation(self, observation: int) -> str:
        return f"The sign: {SIGNS[int(observation)]}"


@dataclass(frozen=True)
class Probe:
    """A task with one thing to learn.

    Attributes:
        name: the thing.
        blames: what is likely broken where it is not learned, and all before it was.
        settings: arguments of `ProbeEnv`.
        values: expected value of each sign at the turn that pays, where there is a value head.
        plays: whether the return shows it.
        remembers: whether it takes an earlier turn in the prompt.
    """

    name: str
    blames: str
    settings: dict[str, Any]
    values: tuple[float, ...] = ()
    plays: bool = False
    remembers: bool = False


PROBES = (
    Probe(
        "a constant value",
        "the value's loss, the learning rate of the value head, or the optimizer",
        {"pays": "always"},
        values=(1.0,),
    ),
    Probe(
        "a value of what is shown",
        "what the model reads: the observation's words, the prompt's end that values are read from, or the "
        "value's gradient",
        {"signs": 2, "pays": "sign 0"},
        values=(1.0, 0.0),
    ),
    Probe(
        "a reward that comes later",
        "credit over turns: gamma, returns, or what a terminated turn bootstraps from",
        {"turns": 2, "pays": "always"},
        values=(1.0,),
    ),
    Probe(
        "which answer pays",
        "the policy's loss: the sign of advantages, log-probabilities, the learning rate, or a parser that "
        "reads another action than was said",
        {"pays": "answer 1"},
        plays=True,
    ),
    Probe(
        "which answer pays for what is shown",
        "advantages that go to another turn than the one they belong to",
        {"signs": 2, "pays": "same answer"},
        plays=True,
    ),
    Probe(
        "an answer to what was shown before",
        "the history in prompts, or credit over turns",
        {"turns": 2, "signs": 2, "pays": "same answer"},
        plays=True,
        remembers=True,
    ),
)


class Watch(L.Callback):
    """Ends a probe's run as soon as its thing is learned, and tells what was reached.

    Args:
        probe: what is to be learned.
        expected: value of each observation's text.
    """

    def __init__(self, probe: Probe, expected: dict[str, float]) -> None:
        self.probe = probe
        self.expected = expected
        self.learned = False
        self.reached = ""
        self._prompts: dict[str, Prompt] = {}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._prompts |= {prompt.observation_text: prompt for prompt in batch.prompts}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LLMLearner)
        if self.probe.plays:
            mean = float(trainer.callback_metrics["rollout/return_mean"])
            self.learned, self.reached = mean >= GOOD_RETURN, f"a mean return of {mean:.2f}, of 1"
        else:
            texts = [text for text in self.expected if text in self._prompts]
            with pl_module.inference() as policy:
                values = policy.values([self._prompts[text] for text in texts]).tolist()
            errors = [abs(value - self.expected[text]) for text, value in zip(texts, values, strict=True)]
            self.learned = len(texts) == len(self.expected) and max(errors) <= VALUE_ERROR
            pairs = (f"{v:.2f} of {self.expected[t]:.2f}" for t, v in zip(texts, values, strict=True))
            self.reached = f"values of {', '.join(pairs)}"
        trainer.should_stop = self.learned


def run_probes(
    trainer: L.Trainer, module: LLMLearner, data: RolloutDataModule, rollouts: int
) -> list[Finding]:
    """Trains a new copy of the module on each probe, easiest first, and says how far it came.

    Args:
        trainer: of the command, whose device and precision count.
        module: the algorithm, without its model as yet.
        data: the run's, whose history and group size count.
        rollouts: the most of each probe.

    Returns:
        A problem for each thing that was not learned; behind the first, others may follow from it.
    """
    say(f"\nProbes, {rollouts} rollouts each at most; one behind the other gets harder.")
    findings = []
    with bar("probes") as show:
        for number, probe in enumerate(PROBES):
            skipped = _skipped(probe, module, data)
            if skipped is not None:
                say(f"  left out   {probe.name}: {skipped}")
                continue
            own = copy.deepcopy(module)
            task = _task(probe, own, data)
            watch = Watch(probe, _expected(probe, own, task.agent))
            L.Trainer(
                accelerator=trainer.accelerator,
                devices=1,
                precision=trainer.precision,
                max_epochs=rollouts,
                gradient_clip_val=1.0,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[watch],
            ).fit(own, task)
            show(number + 1, len(PROBES))
            say(f"  {'learned' if watch.learned else 'NOT LEARNED':<11}{probe.name}: {watch.reached}")
            if not watch.learned:
                text = f"{probe.name} is not learned. It is likely {probe.blames}."
                findings.append(Finding(True, text[0].upper() + text[1:]))
    return findings


def _skipped(probe: Probe, module: LLMLearner, data: RolloutDataModule) -> str | None:
    if not probe.plays and not module.has_critic:
        return f"{type(module).__name__} has no value head"
    if probe.remembers and data.history == 0:
        return "data.history is 0"
    return None


def _task(probe: Probe, module: LLMLearner, data: RolloutDataModule) -> RolloutDataModule:
    settings: dict[str, Any] = {
        "update_epochs": 1 if getattr(module, "single_pass", False) else 8,
        "minibatch_size": 2,
    }
    if module.uses_replay:
        settings = {"replay": ReplayBuffer(minibatch_size=64, updates_per_rollout=8, learning_starts=64)}
    return RolloutDataModule(
        env=PROBE,
        env_kwargs=probe.settings,
        agent=ProbeAgent(),
        num_envs=64,
        episodes_per_rollout=64 if 64 % data.group_size == 0 else 8 * data.group_size,
        group_size=data.group_size,
        history=data.history if probe.remembers else 0,
        eval_episodes=1,
        seed=data.seed,
        **settings,
    )


def _expected(probe: Probe, module: LLMLearner, agent: TextAgent) -> dict[str, float]:
    """The value of each observation's text, from which the reward is `turns` - 1 turns away."""
    if probe.plays:
        return {}
    turns = probe.settings.get("turns", 1)
    gamma: Any = getattr(module, "gamma", 1.0)
    first = {
        agent.format_observation(sign): value * gamma ** (turns - 1)
        for sign, value in enumerate(probe.values)
    }
    return first if turns == 1 else first | {agent.format_observation(2): 1.0}
