"""Result tables, claims of the papers and figures. May import worlds and every package of the library."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"Forecast": "forecast"})
