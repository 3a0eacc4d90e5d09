"""Lightning's Trainer with `check` and `play`, and with an evaluation of the policy that a run ends with."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop

from lgym.callbacks import GracefulShutdown, PhaseProfiler
from lgym.callbacks.provenance import was_finished
from lgym.callbacks.time_limit import PlayingStopped
from lgym.cli.check import Checkup
from lgym.cli.check.findings import Finding
from lgym.cli.check.probes import run_probes
from lgym.cli.check.report import show_findings
from lgym.cli.check.time_budget import TimeBudget
from lgym.cli.new import write_new
from lgym.cli.play import PlayOptions, play_yourself, watch
from lgym.cli.runs import run_folder
from lgym.cli.serve import ServeOptions, serve
from lgym.data import RolloutDataModule
from lgym.modules import LLMLearner
from lgym.terminal import say
from lgym.types import ConfigError


class RolloutLoop(_FitLoop):
    """Lightning's loop over epochs, which are rollouts.

    A rollout that is not played to its end ends it, as the last one does. A run that was killed behind its
    last rollout, whose checkpoint was written, makes up for its end: evaluation, export, report.
    """

    def run(self) -> None:
        if self.done:  # before Lightning asks for the first batch, and so for a rollout
            progress: Any = self.epoch_progress.current
            progress.completed = progress.processed  # whatever ended the run; Lightning does so at max_epochs
            if progress.completed > 0 and not was_finished(self.trainer):
                self.on_run_start()
                self.on_run_end()
            return
        try:
            self.setup_data()  # which plays the session's first rollout
        except PlayingStopped:
            self.on_run_start()
            self.on_run_end()
            return
        try:
            super().run()
        except PlayingStopped:
            self.on_run_end()


class LgymTrainer(Trainer):
    """Trainer of `lgym check` and `lgym play`.

    Both run inside `predict`, so that accelerator, precision and checkpoint are treated as there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("profiler") == "phases":
            kwargs["profiler"] = PhaseProfiler()
        super().__init__(*args, **kwargs)
        loop, self.fit_loop = (
            self.fit_loop,
            RolloutLoop(self, self.fit_loop.min_epochs, self.fit_loop.max_epochs),
        )
        self.fit_loop.epoch_loop = loop.epoch_loop  # which knows max_steps
        self.given: dict[str, Any] = {}  # settings of the command line that are no defaults, nested
        self.run_folder: Path | None = None

    __init__.__signature__ = inspect.signature(Trainer.__init__)  # type: ignore[attr-defined]

    @property
    def log_dir(self) -> str | None:
        """The run's folder, whatever its logger; `default_root_dir` of a subcommand that has none."""
        return self.strategy.broadcast(str(self.run_folder or self.default_root_dir))

    def _run_stage(self) -> Any:
        for callback in self.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GracefulShutdown):
                callback.handle_signals(self)
        return super()._run_stage()

    def check(
        self,
        model: LLMLearner,
        datamodule: RolloutDataModule,
        ckpt_path: str | None = None,
        random_episodes: int = 1000,
        seconds: float = 50.0,
        json: str | None = None,
        probe: bool = False,
        probe_rollouts: int = 30,
    ) -> list[Finding]:
        """Show what the model will see, before any training.

        Ends with status 1 where something would make training useless. Nothing is written but what `json`
        names. Each part is printed as soon as it is known, and Ctrl-C ends with the findings so far.

        Args:
            model: the run's module.
            datamodule: the run's data.
            ckpt_path: a checkpoint to look at instead of the untrained model: a file, or `last`.
            random_episodes: episodes to play at random; fewer if they take longer than a few seconds.
            seconds: time that it may take, behind the program's start: rollouts and minibatches are cut into
                pieces that fit, and the rest of a rollout is extrapolated.
            json: a file to write the same to, as data.
            probe: train the model, the policy and the algorithm on tiny environments instead, each with one
                thing to learn, and say which part is broken where one is not learned.
            probe_rollouts: rollouts of each of these at most.

        Raises:
            ConfigError: if no prompt can be made: a system prompt that is too long, candidates that are
                alike.
        """
        if random_episodes < 1:
            raise ConfigError(f"--random_episodes is {random_episodes}; it must be 1 or more.")
        if seconds <= 0:
            raise ConfigError(f"--seconds is {seconds:g}; it must be above 0.")
        if probe_rollouts < 1:
            raise ConfigError(f"--probe_rollouts is {probe_rollouts}; it must be 1 or more.")
        if probe:
            findings = run_probes(self, model, datamodule, probe_rollouts)
            show_findings(findings, "", seconds)
            return findings
        for choice in datamodule.choose_settings(model, self.strategy.root_device):
            say(choice.line)
        checkup = Checkup(datamodule, model, TimeBudget(seconds))
        checkup.run(random_episodes, lambda work: self._with_model(work, model, datamodule, ckpt_path), json)
        return checkup.findings

    def new(
        self,
        model: LLMLearner,
        datamodule: RolloutDataModule,
        out: str | None = None,
        agent: str | None = None,
    ) -> None:
        """Write a complete YAML for an environment, with the numbers that random play decides and why.

        Args:
            model: the run's module.
            datamodule: the run's data.
            out: the file to write; null takes the environment's name.
            agent: a Python file to write too, with an agent to put into your own words; null writes none.
        """
        write_new(self, model, datamodule, self.given, out, agent)

    def play(
        self,
        model: LLMLearner,
        datamodule: RolloutDataModule,
        ckpt_path: str | None = None,
        episodes: int = 1,
        seed: int = 0,
        greedy: bool = False,
        delay: float = 0.5,
        human: bool = False,
        render: bool = False,
        render_to: str | None = None,
    ) -> None:
        """Watch the agent play in the terminal, or play yourself.

        Args:
            model: the run's module.
            datamodule: the run's data.
            ckpt_path: the checkpoint that plays: a file, or `last`; without one the untrained model.
            episodes: number of episodes to play.
            seed: reset seed of the first episode, each further one has the next number; also seeds the
                sampling.
            greedy: take the likeliest answer instead of sampling one.
            delay: seconds to wait after each turn, and for which a picture of the GIF is shown.
            human: take the turns yourself; no model is loaded.
            render: show the environment's own rendering too: its text, or its frames as a GIF.
            render_to: the GIF's file; by default play.gif in the run's folder.
        """
        for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0), ("delay", delay, 0)):
            if value < least:
                raise ConfigError(f"--{name} is {value}; it must be {least} or more.")
        if render_to is not None and not render:
            raise ConfigError(
                f"--render_to {render_to} is where --render writes frames to: give --render too."
            )
        if human and (greedy or ckpt_path is not None):
            raise ConfigError(f"--human loads no model: leave {'--greedy' if greedy else '--ckpt_path'} out.")
        gif = Path(render_to or run_folder(ckpt_path, self.default_root_dir) / "play.gif")
        options = PlayOptions(episodes, seed, greedy, delay, gif if render else None)
        if human:
            play_yourself(datamodule, options)
        else:
            self._with_model(lambda: watch(datamodule, model, options), model, datamodule, ckpt_path)

    def serve(
        self,
        model: LLMLearner,
        datamodule: RolloutDataModule,
        ckpt_path: str | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        max_batch: int = 64,
        max_bytes: int = 1_000_000,
        timeout: float = 60.0,
        max_episodes: int = 16,
    ) -> None:
        """Serve the agent over HTTP, with a page to watch and play in the browser.

        Args:
            model: the run's module.
            datamodule: the run's data.
            ckpt_path: the checkpoint that acts: a file, or `last`; without one the untrained model.
            host: the address to bind to; others than this machine's own need a token.
            port: the port.
            token: what requests have to bring as `Authorization: Bearer TOKEN`; null asks for none.
            max_batch: inputs of a request, and prompts that are answered together.
            max_bytes: size of a request.
            timeout: seconds after which a request is given up.
            max_episodes: episodes of the page that are kept.
        """
        options = ServeOptions(host, port, token, max_batch, max_bytes, timeout, max_episodes)
        self._with_model(lambda: serve(datamodule, model, options), model, datamodule, ckpt_path)

    def _with_model(
        self,
        work: Callable[[], None],
        model: LLMLearner,
        datamodule: RolloutDataModule,
        ckpt_path: str | None,
    ) -> None:
        """Runs `work` once, with the model built, on its device, and the checkpoint in it."""

        def run_without_batches() -> Iterator[None]:
            work()
            yield from ()

        datamodule.predict_dataloader = run_without_batches  # type: ignore[method-assign, assignment]
        self.predict_loop.inference_mode = False  # a check takes gradients
        self.predict(
            model, datamodule=datamodule, return_predictions=False, ckpt_path=ckpt_path, weights_only=True
        )


class FinalEvaluation(Callback):
    """Has the policy that a run ends with evaluated, whatever `check_val_every_n_epoch` is and whatever ends
    the run.

    That is after the last checkpoint: a run that goes on from it does not know of an evaluation out of turn.
    """

    _evaluated_step = -1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluated_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._evaluated_step == trainer.global_step:
            return
        loop = trainer.fit_loop.epoch_loop
        trainer.validating = True
        loop._batches_that_stepped -= 1  # logged at the last minibatch's step, as other evaluations are
        loop.val_loop.run()
        loop._batches_that_stepped += 1
        trainer.training = True
