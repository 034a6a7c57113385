"""Campaigns: a kind of harm done many times, by chance and by plan, and what came of each time."""
