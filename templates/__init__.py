"""The templates that ship: ``<region>/<variant>/template.toml`` with one kernel file beside it. Data, not code."""
