"""The server's routes."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from math import exp, isnan
from typing import Any

from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lgym.cli.serve import LOOPBACK, ServeOptions
from lgym.cli.serve.answering import Answerer, BusyError
from lgym.cli.serve.episodes import PageEpisode, PageEpisodes
from lgym.cli.serve.inputs import BadInputError, as_json, observation_of
from lgym.data import RolloutDataModule
from lgym.data.prompts.action_candidates import candidates_of
from lgym.modules import LLMLearner
from lgym.rollout import Prompt
from lgym.rollout import Response as PolicyResponse
from lgym.types import ConfigError

Handler = Callable[[Request], Awaitable[Response]]
PAGE_PARTS = {
    "/*CSS*/": ("report", "report.css"),
    "/*CHARTS*/": ("report", "charts.js"),
    "/*JS*/": ("serve", "page.js"),
}
MOST_MESSAGES = 1000
ROLES = ("system", "user", "assistant")


class Server:
    """The agent, its answers and its episodes, which the routes share."""

    def __init__(self, data: RolloutDataModule, module: LLMLearner, options: ServeOptions) -> None:
        self.data, self.module, self.options = data, module, options
        self.agent = data.agents["predict"]
        env = data.make_env("predict")
        self.observation_space = env.observation_space
        env.close()
        self.builder = data.prompt_builder("predict")
        self.answerer = Answerer(module, options.max_batch)
        self.episodes = PageEpisodes(data, module, options.max_episodes)
        self.env_lock = asyncio.Lock()  # environments are not made for several threads

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """While the server runs."""
        answering = asyncio.create_task(self.answerer.run())
        yield
        answering.cancel()
        self.answerer.close()
        self.episodes.close()

    def prompt_of(self, given: Any) -> Prompt:
        """The prompt of an input: an observation of the environment, or its text.

        Raises:
            BadInputError: if it is neither.
        """
        if not isinstance(given, dict) or ("text" in given) == ("observation" in given):
            raise BadInputError("an input is an object with `observation`, or with `text`")
        info = given.get("info", {})
        if not isinstance(info, dict):
            raise BadInputError("info has to be an object")
        if "text" in given:
            text, observation = given["text"], None
            if not isinstance(text, str):
                raise BadInputError("text has to be a text")
        else:
            observation = observation_of(self.observation_space, given["observation"])
            text = self.agent.format_observation(observation)
        candidates: Any = given.get("candidates")
        if not self.module.policy.scores_candidates:
            candidates = ()
        elif candidates is None:
            candidates = candidates_of(self.agent, observation, info)
        elif not isinstance(candidates, list) or not all(isinstance(c, str) and c for c in candidates):
            raise BadInputError("candidates has to be a list of texts")
        if self.module.policy.scores_candidates and not candidates:
            raise BadInputError("candidates is empty")
        return self.builder.prompt(self.builder.readable(text, candidates or None), candidates)

    def answer(self, prompt: Prompt, response: PolicyResponse, value: float) -> dict[str, Any]:
        """An answer as JSON; `action` is null where the agent reads none in the text."""
        parsed = self.agent.parse(str(response.action_text))
        probabilities = map(exp, response.candidate_logprobs)
        return {
            "action": as_json(parsed.action) if parsed.ok else None,
            "text": response.text,
            "probabilities": dict(zip(prompt.candidates, probabilities, strict=False)),
            "value": None if isnan(value) else value,
        }

    async def act(self, request: Request) -> Response:
        """POST /act."""
        body = await self.body(request)
        several = "inputs" in body
        inputs = body["inputs"] if several else [body]
        if not isinstance(inputs, list) or not 0 < len(inputs) <= self.options.max_batch:
            raise BadInputError(f"inputs has to be a list of 1 to {self.options.max_batch}")
        prompts = [self.prompt_of(given) for given in inputs]
        answers = await self.answerer.ask(prompts, sample=_flag(body, "sample"))
        outputs = [self.answer(prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return JSONResponse({"outputs": outputs} if several else outputs[0])

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions, as OpenAI's API has it; without streaming."""
        body = await self.body(request)
        policy = self.module.policy
        if not policy.generates_text or policy.scores_candidates:
            raise BadInputError("this policy chooses between candidates: ask POST /act")
        if _flag(body, "stream"):
            raise BadInputError("stream is not supported: leave it out")
        messages = body.get("messages")
        if not isinstance(messages, list) or not 0 < len(messages) <= MOST_MESSAGES:
            raise BadInputError(f"messages has to be a list of 1 to {MOST_MESSAGES}")
        if not all(map(_is_message, messages)):
            raise BadInputError(
                f"a message is an object with a role ({', '.join(ROLES)}) and a text as `content`"
            )
        try:
            ids = self.builder.conversation([{"role": m["role"], "content": m["content"]} for m in messages])
        except TemplateError as error:
            raise BadInputError(f"the model's chat template refuses these messages: {error}") from error
        limit = self.module.context_length
        if len(ids) > limit:
            raise BadInputError(f"the messages have {len(ids)} tokens, and the model takes {limit}")
        greedy = body.get("temperature") == 0
        prompt = Prompt(ids, (), (), observation_text=messages[-1]["content"])
        ((response, _),) = await self.answerer.ask([prompt], sample=not greedy)
        counts = {"prompt_tokens": len(ids), "completion_tokens": len(response.token_ids)}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": response.text},
            "finish_reason": "stop" if response.finished else "length",
        }
        return JSONResponse(
            {
                "id": f"chatcmpl-{secrets.token_hex(8)}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self.module.llm_config.model,
                "choices": [choice],
                "usage": {**counts, "total_tokens": sum(counts.values())},
            }
        )

    async def begin(self, request: Request) -> Response:
        """POST /episodes."""
        seed = (await self.body(request)).get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise BadInputError("seed has to be a whole number, 0 or more")
        async with self.env_lock:
            name, episode = await run_in_threadpool(self.episodes.begin, seed)
            return JSONResponse({"id": name, **await self.shown(episode)})

    async def step(self, request: Request) -> Response:
        """POST /episodes/{id}: a turn of the agent, or of the person who names an action."""
        body = await self.body(request)
        async with self.env_lock:
            episode = self.episodes.get(request.path_params["id"])
            if episode is None:
                return _error(404, "there is no such episode any more: begin another one")
            if episode.ending:
                raise BadInputError("the episode has ended: begin another one")
            text = body.get("action")
            if text is None:
                ((response, _),) = await self.answerer.ask([episode.prompt], sample=_flag(body, "sample"))
            else:
                response = episode.response_of(text)
            await run_in_threadpool(episode.step, response)
            return JSONResponse({"taken": response.text, **await self.shown(episode)})

    async def shown(self, episode: PageEpisode) -> dict[str, Any]:
        """An episode with what the policy thinks of its state."""
        state = await run_in_threadpool(episode.state)
        if not episode.ending:
            ((response, value),) = await self.answerer.ask([episode.prompt], sample=False)
            state |= {"advice": self.answer(episode.prompt, response, value)}
        return state

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok", "env": self.data.env, "model": self.module.llm_config.model})

    async def page(self, request: Request) -> Response:
        """GET /."""
        html = _part("serve", "page.html")
        for mark, (folder, name) in PAGE_PARTS.items():
            html = html.replace(mark, _part(folder, name))
        return HTMLResponse(html)

    async def body(self, request: Request) -> dict[str, Any]:
        """The object that a request brings.

        Raises:
            BadInputError: if it is too large, or no object.
        """
        text = bytearray()
        async for chunk in request.stream():
            text += chunk
            if len(text) > self.options.max_bytes:
                raise BadInputError(f"a request has at most {self.options.max_bytes} bytes", status=413)
        try:
            body = json.loads(text or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadInputError(f"the request is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise BadInputError("the request has to be a JSON object")
        return body

    def guarded(self, handler: Handler) -> Handler:
        """The handler with a token, a time limit, and errors as JSON."""

        async def guard(request: Request) -> Response:
            token = self.options.token
            given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
            if token is not None and not secrets.compare_digest(given, token.encode()):
                return _error(401, "this server wants a token: Authorization: Bearer ...")
            try:
                return await asyncio.wait_for(handler(request), self.options.timeout)
            except BadInputError as error:
                return _error(error.status, str(error))
            except ConfigError as error:
                return _error(422, str(error))
            except BusyError:
                return _error(503, "too many requests wait: try again later")
            except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
                return _error(504, f"there was no answer within {self.options.timeout:g} seconds")

        return guard


def make_app(data: RolloutDataModule, module: LLMLearner, options: ServeOptions) -> Starlette:
    """The server as an ASGI application; the module has its model."""
    server = Server(data, module, options)
    routes = [
        Route("/", server.page),
        Route("/health", server.health),
        Route("/act", server.guarded(server.act), methods=["POST"]),
        Route("/v1/chat/completions", server.guarded(server.chat), methods=["POST"]),
        Route("/episodes", server.guarded(server.begin), methods=["POST"]),
        Route("/episodes/{id}", server.guarded(server.step), methods=["POST"]),
    ]
    local = options.host in LOOPBACK  # a page of another site cannot give this server its name
    hosts = [*LOOPBACK, "[::1]"] if local else ["*"]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    return Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=server.lifespan,
        exception_handlers={Exception: _failed},  # its traceback goes to the server's log
    )


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the agent failed; the server's log says why, and the server goes on")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status)


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadInputError(f"{name} has to be true or false")
    return value


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES and isinstance(value.get("content"), str)


def _part(folder: str, name: str) -> str:
    return files(f"lgym.cli.{folder}").joinpath(name).read_text(encoding="utf-8")
