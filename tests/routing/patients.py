"""Conversations with a bakery's assistant, and a doctor who sees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

from stickyroute.openai.routes import Shape
from stickyroute.routing.doctor import Doctor
from stickyroute.routing.doctor.compare import Break

Body = dict[str, Any]
SYSTEM = (
    "You are the assistant of a bakery. " + "Bread is baked each morning and sold until it is gone. " * 20
)
NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks at the {name} of the bakery.",
            "parameters": {
                "type": "object",
                "properties": {"day": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
    }
    for name in ("stock", "orders", "staff", "weather")
]


def talk(turns: int, system: str = SYSTEM, about: str = "rye") -> list[Body]:
    """A conversation that ends with a question."""
    messages: list[Body] = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages += [
            {
                "role": "user",
                "content": f"And how much {about} is baked by the {'very ' * turn}next morning, please?",
            },
            {
                "role": "assistant",
                "content": f"So much {about}, and {'much ' * turn}more if it is asked for.",
            },
        ]
    return messages[:-1]


def body(messages: list[Body], **more: Any) -> Body:
    return {"model": "m", "messages": messages, **more}


class Patient:
    """A doctor and one user's prompts."""

    def __init__(self, **options: Any) -> None:
        self.doctor = Doctor(options.pop("keys", 100), 0.0, **options)
        self._now_s = count()

    def see(
        self, asked: Body, key: int | None = 7, shape: Shape = Shape.CHAT, tenant: str = ""
    ) -> Break | None:
        return self.doctor.see(key, tenant, "m", shape, asked, float(next(self._now_s)))

    @property
    def found(self) -> list[dict[str, Any]]:
        return self.doctor.findings.told(60.0, samples=True)


def shuffled(value: Any, rand: Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        names = list(value)
        rand.shuffle(names)
        return {name: shuffled(value[name], rand) for name in names}
    return [shuffled(item, rand) for item in value] if isinstance(value, list) else value


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)
