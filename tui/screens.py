"""The table of the app's screens: another screen is a file that makes a `ScreenSpec`, and its row here."""

from __future__ import annotations

from . import locking, logs, refining, regions, review, tuning
from .screen import Screens

SCREENS: Screens = (regions.SCREEN, tuning.SCREEN, review.SCREEN, locking.SCREEN, logs.SCREEN)
"""In the order of their number keys; the first is what a run opens on."""
REFINE_SCREENS: Screens = (refining.SCREEN, refining.LEADERBOARD, refining.LOG)
"""Those of a session of `refine`."""
