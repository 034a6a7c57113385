"""What advice is worth: where an order has the winner, from one exhaustively judged run per region."""

from __future__ import annotations
