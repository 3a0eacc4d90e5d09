"""Messages of libraries about each other, which are not shown: a command's first lines are lgym's.

Importing this module silences what libraries say while they are imported, so it comes before them.
"""

import logging
import os
import sys
import warnings

UNHELPFUL_WARNINGS = (
    ".*does not have many workers.*",  # batches come ready-made
    ".*`training_step` returned `None`.*",  # on purpose: RolloutNotes tells of it
    ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run goes on in its folder
    ".*The dirpath has changed from .*",  # evaluating writes beside the run it evaluates
    ".*modules in eval mode.*",
    ".*callbacks used to create the checkpoint.*",  # looking at a checkpoint takes none
    ".*scheduler is using 'interval': 'epoch'.*",  # an epoch is a rollout
    ".*isinstance\\(treespec, LeafSpec\\).*",
    ".*Unable to fetch remote file.*",
    ".*recommended to use `self.log\\(.*sync_dist=True.*",  # every process has the same value already
    ".*The `srun` command is available.*",
    ".*is_gradient_checkpointing.*",  # peft asks transformers for a name that it has changed
)
LIBRARIES = r"(accelerate|bitsandbytes|huggingface_hub|jsonargparse|lightning|peft|torch|transformers)\b.*"
"""Modules whose deprecations concern their own authors."""

LOGGERS = ("lightning.fabric.utilities.seed", "lightning.pytorch.utilities.rank_zero", "lightning.pytorch")
UNHELPFUL_MESSAGES = ("💡", "Seed set to", "GPU available:", "TPU available:", "Restoring states from")


def silence_imports() -> None:
    """Silences what libraries log while they are imported, and progress bars where nobody watches them."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' own bars obey it too


def silence_libraries() -> None:
    """Silences advice that does not hold here, and libraries' messages about each other."""
    for message in UNHELPFUL_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=LIBRARIES)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_helpful)


def _is_helpful(record: logging.LogRecord) -> bool:
    return not any(text in str(record.msg) for text in UNHELPFUL_MESSAGES)


silence_imports()
