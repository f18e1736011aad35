"""Result tables, claims of the papers and figures; may import every room of the laboratory and the library."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"Forecast": "forecast", "ForecastCorpus": "corpus_forecast"})
