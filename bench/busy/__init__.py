"""A busy machine: what our work takes beside other processes that want the same cores."""
