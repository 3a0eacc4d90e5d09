"""Which contexts belong together in a pass."""

from __future__ import annotations

import torch

from lgym.batch import Rollout


def bundles_of(rollout: Rollout) -> tuple[tuple[int, ...], ...]:
    """The contexts that were acted on, those together that one episode led through, each going on from the one before.

    They share all but their ends, so a pass computes them together for little more than the longest.
    """
    ids, mask = rollout.context_ids, rollout.mask
    together = (rollout.episode_ids[:, 1:] == rollout.episode_ids[:, :-1]) & mask[:, 1:] & mask[:, :-1]
    steps = torch.stack([ids[:, :-1][together], ids[:, 1:][together]], dim=1).unique(dim=0).tolist()
    bundle: dict[int, list[int]] = {}
    for before, after in sorted(steps, key=lambda step: len(rollout.contexts[step[1]].prompt_ids)):
        prompt, longer = rollout.contexts[before].prompt_ids, rollout.contexts[after].prompt_ids
        if after in bundle or len(longer) <= len(prompt) or longer[: len(prompt)] != prompt:
            continue
        chain = bundle.setdefault(before, [before])
        if chain[-1] == before:
            chain.append(after)
            bundle[after] = chain
    acted_on = ids[mask].unique().tolist()
    return tuple(tuple(bundle.get(c, [c])) for c in acted_on if bundle.get(c, [c])[0] == c)
