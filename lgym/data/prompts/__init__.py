"""From observations to prompts: the chat template, the conversation, memories and candidates."""
