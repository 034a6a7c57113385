"""Between a lock and a model: write a lock, open it, bind it, and compare its accuracy."""
