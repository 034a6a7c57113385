"""Between a lock and a model: write, open, bind, compare."""
