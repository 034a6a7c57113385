"""Discovery of templates: folders of data go in, a catalog of checked templates comes out; nothing is executed."""

from agentcompile.catalog.discover import Catalog, Quarantined, default_root, load

__all__ = ["Catalog", "Quarantined", "default_root", "load"]
