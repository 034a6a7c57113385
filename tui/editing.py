"""The names of keys, and the one line that a person types and edits. Pure."""

from __future__ import annotations

from dataclasses import replace

from agentcompile.events import clean

from .scene import Ask, Dialog, Overlay

LONGEST = 500
"""Characters of an answer."""


def named(key: str, character: str) -> str:
    """Return a key as the tables write it: the character that it types, or its name."""
    return character if character.strip() else key


def edited(ask: Ask, key: str, character: str) -> Ask:
    """Return the answer after a key; a key that types nothing and edits nothing changes nothing."""
    text, at = ask.text, ask.at
    match key:
        case "backspace" | "ctrl+h":
            return replace(ask, text=text[: max(at - 1, 0)] + text[at:], at=max(at - 1, 0))
        case "delete" | "ctrl+d":
            return replace(ask, text=text[:at] + text[at + 1 :])
        case "left":
            return replace(ask, at=max(at - 1, 0))
        case "right":
            return replace(ask, at=min(at + 1, len(text)))
        case "home" | "ctrl+a":
            return replace(ask, at=0)
        case "end" | "ctrl+e":
            return replace(ask, at=len(text))
        case "ctrl+u":
            return replace(ask, text=text[at:], at=0)
        case "ctrl+w":
            kept = text[:at].rstrip().rpartition(" ")
            start = kept[0] + kept[1]
            return replace(ask, text=start + text[at:], at=len(start))
        case _:
            return typed(ask, character)


def pasted(overlay: Overlay | None, characters: str) -> Overlay | None:
    """Return what lies over a screen after `characters` were pasted; they are ignored where nothing is typed."""
    match overlay:
        case Ask() as ask:
            return typed(ask, characters)
        case Dialog(name=Ask() as name) as dialog:
            return replace(dialog, name=typed(name, characters))
        case _:
            return overlay


def typed(ask: Ask, characters: str) -> Ask:
    """Return the answer with `characters`, typed or pasted, at the cursor."""
    more = clean(characters, LONGEST)
    if not more or len(ask.text) + len(more) > LONGEST:
        return ask
    return replace(ask, text=ask.text[: ask.at] + more + ask.text[ask.at :], at=ask.at + len(more))
