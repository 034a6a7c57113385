"""One step: the cover, alternatives tried inside it, admission, overrides, and plans for prompts."""
