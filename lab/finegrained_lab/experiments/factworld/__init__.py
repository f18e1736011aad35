"""What FactWorld shows: tables, figures and claims of chapter 6."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "WriteGoldAnswers": "gold",
        "AblationTable": "tables.ablation",
        "AggregationTable": "tables.aggregation",
        "AlgorithmsTable": "tables.algorithms",
        "BestOfTable": "tables.best_of",
        "CompatTable": "tables.compat",
        "CreditTable": "tables.credit",
        "DynamicsTable": "tables.dynamics",
        "EfficiencyTable": "tables.efficiency",
        "FactWorldGrid": "grid",
        "FreeCreditTable": "tables.credit",
        "FreeFormTable": "tables.systems",
        "HolesTable": "holes",
        "MeasureDrift": "drift",
        "PresetsTable": "tables.algorithms",
        "PreferenceModelsTable": "preference.table",
        "SystemsTable": "tables.systems",
    },
)
