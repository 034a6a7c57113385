"""An LLM-guided inference compiler for decoder-only transformers."""
