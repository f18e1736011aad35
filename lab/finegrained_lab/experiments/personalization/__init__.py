"""The tables of learning at use time."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AskChoices": "choices.measures",
        "ChosenPreferencesTable": "choices.chosen_preferences",
        "CoresetTable": "coreset",
        "EditTeachersLongerTable": "edit_teachers",
        "EditTeachersContextsTable": "edit_teachers",
        "EditTeachersTable": "edit_teachers",
        "NotesAndTrainingTable": "notes_and_training",
        "PahfSweepTable": "pahf_sweep",
        "PahfTable": "pahf",
        "PreferenceChooser": "choices.chooser",
        "PreludeEncodersTable": "encoders",
        "PreludeTable": "prelude",
        "RankDrafts": "ranked_drafts",
        "RegretTable": "regret",
        "SmallModelsTable": "choices.small_models",
        "StraysTable": "strays",
        "StyleTrainingTable": "style_training",
        "TrainPairs": "pairs",
    },
)
