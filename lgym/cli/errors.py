"""What a run that ends by a mistake says, and what libraries say that is not heard."""

from __future__ import annotations

import logging
import warnings

NOT_OPENED = (
    "The checkpoint (ckpt_path) was not opened. It holds something else than tensors, numbers and texts, and opening that "
    "could run a program of whoever wrote it; or it is no checkpoint, or damaged. None of lgym's own is like that: give "
    "another one."
)

LOST = (
    "Process {rank} of the run ends, since another one has ended or cannot be reached; what that one said stands above, "
    "unless it was killed, as it is where memory runs out. The last checkpoint is whole: go on with --ckpt_path last.\n"
    "({said})"
)

MESSAGE = 10_000
"""Characters of an error's message that are shown; it may quote an observation."""


def essence(message: str) -> str:
    """A parser's message without its account of every type that was tried."""
    noise = ("Does not validate against", "Subtypes:", "Errors:", "Given value", "Expected a <class 'NoneType'>")
    lines = (line.strip().removeprefix("- ") for line in message.splitlines())
    return "\n  ".join(line for line in lines if line and not line.startswith(noise))


def quieten() -> None:
    """Silences advice that does not hold here, and libraries' messages about each other."""
    for message in (
        ".*does not have many workers.*",  # batches come ready-made
        ".*`training_step` returned `None`.*",  # target_kl skips on purpose
        ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run goes on in its folder
        ".*The dirpath has changed from .*",  # evaluating writes beside the run it evaluates
        ".*modules in eval mode.*",
        ".*callbacks used to create the checkpoint.*",  # looking at a checkpoint takes none
        ".*scheduler is using 'interval': 'epoch'.*",  # an epoch is a rollout
        ".*isinstance\\(treespec, LeafSpec\\).*",
        ".*Unable to fetch remote file.*",
        ".*recommended to use `self.log\\(.*sync_dist=True.*",  # everyone has the same value already
        ".*The `srun` command is available.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).addFilter(lambda record: "💡" not in str(record.msg))  # advertisements
