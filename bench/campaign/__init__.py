"""Campaigns: one kind of attack on the compiler, made many times by chance and by plan, with each attempt's result."""
