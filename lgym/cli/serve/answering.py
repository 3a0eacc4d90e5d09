"""Requests of the moment, answered together by one pass of the model."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from lgym.modules import LLMLearner
from lgym.rollout import Prompt, Response

LONGEST_QUEUE = 16
"""Batches that may wait."""


class BusyError(Exception):
    """More requests wait than will be answered soon."""


@dataclass
class Question:
    """A prompt that waits for its answer."""

    prompt: Prompt
    sample: bool
    answer: asyncio.Future[tuple[Response, float]]


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

    async def ask(self, prompts: Sequence[Prompt], *, sample: bool) -> list[tuple[Response, float]]:
        """The responses to prompts, with the values of their states; NaN without a critic.

        Raises:
            BusyError: if too many wait already.
        """
        if self._questions.qsize() + len(prompts) > LONGEST_QUEUE * self._max_batch:
            raise BusyError
        loop = asyncio.get_running_loop()
        questions = [Question(prompt, sample, loop.create_future()) for prompt in prompts]
        for question in questions:
            self._questions.put_nowait(question)
        return list(await asyncio.gather(*(question.answer for question in questions)))

    async def run(self) -> None:
        """Answers, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._questions.get()]
            while len(batch) < self._max_batch and not self._questions.empty():
                batch.append(self._questions.get_nowait())
            waiting = [question for question in batch if not question.answer.done()]  # not given up
            for sample in (False, True):
                part = [question for question in waiting if question.sample == sample]
                if part:
                    await self._answer(loop, part, sample)

    async def _answer(self, loop: Any, part: Sequence[Question], sample: bool) -> None:
        try:
            answers = await loop.run_in_executor(self._thread, self._act, [q.prompt for q in part], sample)
        except Exception as error:  # noqa: BLE001  (whoever asked is told; the server goes on)
            for question in part:
                if not question.answer.done():
                    question.answer.set_exception(error)
            return
        for question, answer in zip(part, answers, strict=True):
            if not question.answer.done():
                question.answer.set_result(answer)

    def _act(self, prompts: Sequence[Prompt], sample: bool) -> list[tuple[Response, float]]:
        with self._module.inference() as policy:  # gradients are switched off thread by thread
            responses, values = policy.act(prompts, self._rng if sample else None, keep_kv_cache=False)
        return list(zip(responses, values.float().tolist(), strict=True))

    def close(self) -> None:
        """Ends its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
