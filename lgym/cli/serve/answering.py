"""Requests of the moment, answered together by one pass of the model."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from lgym.modules import LLMLearner
from lgym.rollout import Prompt, Response

LONGEST_QUEUE = 16
"""Batches that may wait."""


class BusyError(Exception):
    """More requests wait than will be answered soon."""


Answer = tuple[Response, float]


@dataclass
class Question:
    """A prompt that waits for its place in a batch: the batch's answers to come, and its number there."""

    prompt: Prompt
    sample: bool
    place: asyncio.Future[tuple[asyncio.Future[list[Answer]], int]]


class Answerer:
    """Asks the policy, from one thread of its own. What comes in while it computes is the next batch.

    Args:
        module: has its model.
        max_batch: most prompts of a batch.
    """

    def __init__(self, module: LLMLearner, max_batch: int) -> None:
        self._module = module
        self._max_batch = max_batch
        self._rng = np.random.default_rng()
        self._thread = ThreadPoolExecutor(1, "lgym-policy")
        self._questions: asyncio.Queue[Question] = asyncio.Queue()

    async def ask(self, prompts: Sequence[Prompt], *, sample: bool) -> list[Answer]:
        """The responses to prompts, with the values of their states; NaN without a critic.

        Raises:
            BusyError: if too many wait already.
            Exception: what the policy raised, to all whose prompts were in that batch.
        """
        if self._questions.qsize() + len(prompts) > LONGEST_QUEUE * self._max_batch:
            raise BusyError
        loop = asyncio.get_running_loop()
        questions = [Question(prompt, sample, loop.create_future()) for prompt in prompts]
        for question in questions:
            self._questions.put_nowait(question)
        places = await asyncio.gather(*(question.place for question in questions))
        return [(await asyncio.shield(batch))[number] for batch, number in places]

    async def run(self) -> None:
        """Answers, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._questions.get()]
            while len(batch) < self._max_batch and not self._questions.empty():
                batch.append(self._questions.get_nowait())
            waiting = [question for question in batch if not question.place.done()]  # not given up
            for sample in (False, True):
                part = [question for question in waiting if question.sample == sample]
                if not part:
                    continue
                answers = loop.run_in_executor(self._thread, self._act, [q.prompt for q in part], sample)
                for number, question in enumerate(part):
                    if not question.place.done():
                        question.place.set_result((answers, number))
                await asyncio.wait([answers])  # raises nothing: those who asked look into it

    def _act(self, prompts: Sequence[Prompt], sample: bool) -> list[Answer]:
        try:
            with self._module.inference() as policy:  # gradients are switched off thread by thread
                responses, values = policy.act(prompts, self._rng if sample else None, keep_kv_cache=False)
        except StopIteration as error:  # asyncio's futures take any but this, and would wait for ever
            raise RuntimeError("the policy raised StopIteration") from error
        return list(zip(responses, values.float().tolist(), strict=True))

    def close(self) -> None:
        """Ends its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
