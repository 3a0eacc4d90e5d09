"""TRL's GRPO trainer, timed. Runs in TRL's environment, not in lgym's; `scripts/bench.py --peer trl` starts
it.

    python trl_job.py MODEL_FOLDER SECONDS

Trains on the eight prompts of `letters` in bf16, 8 replies of at most 8 tokens to each, one optimizer step on
all of them, with LoRA of rank 8 on all linear layers, for at least SECONDS after a first step; prints one
JSON line: trained replies, seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from letters import PROMPTS, SYSTEM, reward
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

REPLIES = 64


class Clock(TrainerCallback):
    """Ends training when the time is over; the first step warms up."""

    def __init__(self, seconds: float) -> None:
        self.least, self.begun, self.steps = seconds, 0.0, 0

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        if state.global_step == 1:
            self.begun = now
            return
        self.steps, self.spent = state.global_step - 1, now - self.begun
        control.should_training_stop = self.spent >= self.least


def main() -> None:
    folder, seconds = sys.argv[1], float(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompts = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}] for prompt in PROMPTS
    ]
    clock = Clock(seconds)
    with tempfile.TemporaryDirectory() as output:
        GRPOTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [
                reward(completion[0]["content"]) for completion in completions
            ],
            train_dataset=Dataset.from_dict({"prompt": prompts * 1000}),
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
            args=GRPOConfig(
                output_dir=output,
                per_device_train_batch_size=REPLIES,
                num_generations=8,
                max_completion_length=8,
                learning_rate=1e-4,
                beta=0.0,
                bf16=True,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                max_steps=100_000,
                use_cpu=True,
            ),
            callbacks=[clock],
        ).train()
    print(json.dumps({"replies": clock.steps * REPLIES, "seconds": clock.spent}))


if __name__ == "__main__":
    main()
