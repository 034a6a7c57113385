"""A busy machine: the times of compiling and generating beside other processes that use the same cores or GPU."""
