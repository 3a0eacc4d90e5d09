"""Chat templates with the habits that have broken others: each must be fed to the model token for token."""

from __future__ import annotations

from helpers import tiny

ADDS_BOS = "{{ bos_token }}" + tiny.TEMPLATE
TRIMS = tiny.TEMPLATE.replace("message['content']", "message['content'] | trim")
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + tiny.TEMPLATE
)
ALTERNATES = (
    "{% for message in messages %}"
    "{% if loop.index0 > 1 and message['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + tiny.TEMPLATE
)
DROPS_THINKING = tiny.TEMPLATE.replace(
    "message['content']",
    "(message['content'].split('e')[-1] if message['role'] == 'assistant' else message['content'])",
)
"""Drops the text before the last letter e, as Qwen 3's drops that before `</think>`, so that random text has
it."""

ENDS_OTHERWISE = tiny.TEMPLATE.replace("<|im_end|>", "<|pad|>")
"""Turns end with the token that pads, and not with the one that the model ends a reply with."""

TEMPLATES = {
    "plain": tiny.TEMPLATE,
    "adds bos": ADDS_BOS,
    "trims": TRIMS,
    "no system role": NO_SYSTEM,
    "alternates": ALTERNATES,
    "drops thinking": DROPS_THINKING,
    "ends with padding": ENDS_OTHERWISE,
}
