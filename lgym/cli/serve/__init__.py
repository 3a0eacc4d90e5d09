"""`lgym serve`: a trained agent as an HTTP server, with a page to watch and play in the browser."""

from dataclasses import dataclass

from lgym.data import RolloutDataModule
from lgym.modules import LLMLearner
from lgym.terminal import say
from lgym.types import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeOptions:
    """Options of the server.

    Attributes:
        host: the address that it is bound to.
        port: its port.
        token: what requests have to bring as `Authorization: Bearer ...`; `None` asks for none.
        max_batch: inputs of a request, and prompts that are answered together.
        max_bytes: size of a request.
        timeout: seconds after which a request is given up.
        max_episodes: episodes of the page that are kept; the one unused for longest is closed first.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_batch: int = 64
    max_bytes: int = 1_000_000
    timeout: float = 60.0
    max_episodes: int = 16

    def __post_init__(self) -> None:
        for name in ("port", "max_batch", "max_bytes", "timeout", "max_episodes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} is {getattr(self, name)}; it must be above 0.")
        if self.token is not None and not self.token.strip():
            raise ConfigError("--token is empty, which anybody can guess: give another, or leave it out.")
        if self.host not in LOOPBACK and self.token is None:
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: give a --token that requests have "
                "to bring, or leave --host out."
            )


def serve(data: RolloutDataModule, module: LLMLearner, options: ServeOptions) -> None:
    """Answers requests until it is interrupted; the module has its model.

    Raises:
        ConfigError: if the server's packages are missing.
    """
    try:
        import uvicorn

        from lgym.cli.serve.app import make_app
    except ImportError as error:
        raise ConfigError(
            f"`lgym serve` needs {error.name}, which is not installed: `pip install 'lgym[serve]'`, or "
            "`pip install starlette uvicorn`."
        ) from error
    shown = f"[{options.host}]" if ":" in options.host else options.host
    say(f"http://{shown}:{options.port}/ has a page to watch and play; Ctrl-C ends the server.")
    uvicorn.run(make_app(data, module, options), host=options.host, port=options.port, log_level="warning")
