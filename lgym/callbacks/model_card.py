"""The README.md of an exported model, with the Hugging Face Hub's metadata."""

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lgym.modules.evaluation import MODES

TASK = "reinforcement-learning"
ABSOLUTE_PATH = re.compile(r"(?<![\w.-])[~/][^\s=]*/")
"""The folders of a command's words that are of this machine alone."""

CARD = """\
---
{front}
---

# {algorithm} on {env}

{what} trained with lgym by {algorithm} on `{env}`{kwargs}.

Its base is `{base}`{where}. To load it: {load}
{results}{settings}"""

RESULTS = """
## Results

Mean return per episode, {episodes}.

| policy | before training | trained |
| --- | --- | --- |
{rows}
"""

SETTINGS = """
## How it was trained

```bash
{command}
```

{rollouts:,} rollouts, {turns:,} turns; {machine}; lgym {lgym}{commit}. The system prompt:

```text
{system_prompt}
```
"""


def model_card(
    run: Mapping[str, Any], *, base: str, on_hub: bool, where: str, what: str, library: str, load: str
) -> str:
    """The text of the card.

    Args:
        run: what `lgym.callbacks.Provenance` recorded; of a run without it only what it knows is said.
        base: name of the model that was trained on.
        on_hub: it is an id on the Hub.
        where: what else is to be said of the base.
        what: what is in the folder, such as `A LoRA adapter`.
        library: the Hub's name of the library that loads it.
        load: how.
    """
    env = run.get("env") or "an environment"
    kwargs = ", ".join(f"{name}: {value}" for name, value in run.get("env_kwargs", {}).items())
    return CARD.format(
        front=metadata(run, base=base if on_hub else None, library=library),
        algorithm=run.get("algorithm", "reinforcement learning"),
        env=env,
        kwargs=f" ({kwargs})" if kwargs else "",
        what=what,
        base=base,
        where=where,
        load=load,
        results=_results(run),
        settings=_settings(run),
    )


def metadata(run: Mapping[str, Any], *, base: str | None, library: str) -> str:
    """The front matter: library, base, tags, and the mean reward as the Hub's leaderboards read it."""
    env, results = run.get("env", ""), run.get("results", {})
    figures = [
        EvalResult(
            task_type=TASK,
            task_name=TASK,
            dataset_type=env,
            dataset_name=env,
            metric_type="mean_reward",
            metric_name=f"mean_reward ({mode})",
            metric_value="{:.2f} +/- {:.2f}".format(
                *(results[f"val_{mode}/return_{part}"] for part in ("mean", "std"))
            ),
        )
        for mode in MODES
        if f"val_{mode}/return_mean" in results
    ]
    named = {"model_name": run["algorithm"], "eval_results": figures} if figures else {}
    tags = [TASK, "lgym", *([env] if env else [])]
    return ModelCardData(base_model=base, library_name=library, tags=tags, **named).to_yaml()


def _results(run: Mapping[str, Any]) -> str:
    after, before = run.get("results", {}), run.get("initial_results", {})
    rows = [
        (f"this one, {mode}", _figure(before, mode), _figure(after, mode))
        for mode in MODES
        if f"val_{mode}/return_mean" in after
    ]
    if not rows:
        return ""
    rows += [(name, "", f"{value:.4f}") for name, value in run["reference_returns"].items()]
    episodes = f"{run['eval_episodes']} episodes of fixed seeds"
    return RESULTS.format(episodes=episodes, rows="\n".join(f"| {' | '.join(cells)} |" for cells in rows))


def _figure(metrics: Mapping[str, float], mode: str) -> str:
    name = f"val_{mode}/return"
    if f"{name}_mean" not in metrics:
        return ""
    return f"{metrics[f'{name}_mean']:.4f} ± {metrics[f'{name}_ci95']:.4f}"


def _settings(run: Mapping[str, Any]) -> str:
    if not run.get("sessions"):
        return ""
    newest = run["sessions"][-1]
    return SETTINGS.format(
        command=ABSOLUTE_PATH.sub("", newest["command"]),
        machine=newest["machine"],
        lgym=newest["versions"].get("lgym", ""),
        commit=f", commit {newest['commit']}" if newest["commit"] else "",
        rollouts=run.get("rollouts", 0),
        turns=run.get("turns", 0),
        system_prompt=run.get("system_prompt", ""),
    )
