"""Making an InscitWorld's files: pages and a corpus, conversations over it, and the truth about both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.published.inscit.data import write_inscit
from finegrained_lab.published.inscit.pages import page_passages
from finegrained_lab.worlds.inscit import lexicon
from finegrained_lab.worlds.inscit.annotators import AnnotatorHabits
from finegrained_lab.worlds.inscit.articles import ArticleConfig, WorldArticle, draw_articles
from finegrained_lab.worlds.inscit.conversations import ConversationConfig, DrawnConversation, draw_conversation
from finegrained_lab.worlds.inscit.grammar import (
    PASSAGE_SENTENCES,
    Statement,
    offered,
    related,
    told,
)
from finegrained_lab.worlds.inscit.oracle import PASSAGE_TRUTH, statement_rows
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.base import World
from finegrained_rlhf.inscit.conversation import NO_INFORMATION, RESPONSE_TYPES, joint_target, with_type
from finegrained_rlhf.text.templates import conversation_text, evidence_text

PAGES, PASSAGES = "pages/pages.json", "corpus.jsonl"


@dataclass(frozen=True)
class MakeInscitWorld(World[DrawnConversation]):
    """Make a world and write its files to `output_dir`.

    `pages/pages.json`: the articles, as INSCIT publishes Wikipedia. `corpus.jsonl`: the same as a corpus. `train.json`,
    `dev.json`, `test.json`: conversations in the layout that INSCIT publishes. `truth.json`: what each passage states.
    `world.jsonl`: what each turn asks and each label states. `corpus.txt`: every word of the world in every form; it
    does not depend on the seed.

    No entity is spoken of in conversations of two splits; the passages about all of them are in one corpus.

    Attributes:
        train: conversations to train on; 0 writes no file.
        dev: conversations for selection.
        test: held-out conversations.
        articles: what the corpus looks like.
        conversations: what users ask.
        habits: how annotators answer.
    """

    salt: ClassVar[str] = "inscit world"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    suffix: ClassVar[str] = ".json"

    train: int = 800
    dev: int = 80
    test: int = 160
    articles: ArticleConfig = field(default_factory=ArticleConfig)
    conversations: ConversationConfig = field(default_factory=ConversationConfig)
    habits: AnnotatorHabits = field(default_factory=AnnotatorHabits)

    @cached_property
    def drawn_articles(self) -> tuple[WorldArticle, ...]:
        """Every article of the world. They do not depend on the sizes of the splits."""
        return tuple(draw_articles(self.rng("articles"), self.articles))

    def draw(self) -> dict[str, list[DrawnConversation]]:
        """Each split's conversations. A split does not depend on the sizes of the others."""
        splits: dict[str, list[DrawnConversation]] = {}
        for split in self.splits:
            articles, rng = [one for one in self.drawn_articles if one.split == split], self.rng(split)
            splits[split] = [
                draw_conversation(f"{split}_level1_dial{number}", articles, rng, self.conversations, self.habits)
                for number in range(getattr(self, split))
            ]
        return splits

    def write_shared(self, directory: Path) -> list[str]:
        """The pages, the corpus that they make, and what its passages state."""
        write_json(directory / PAGES, [_page(article) for article in self.drawn_articles])
        write_jsonl(directory / PASSAGES, page_passages(directory / PAGES))
        passages = [passage for article in self.drawn_articles for passage in article.passages]
        write_json(directory / PASSAGE_TRUTH, {"passages": {one.id: statement_rows(one.facts) for one in passages}})
        return [PAGES, PASSAGES, PASSAGE_TRUTH]

    def write_split(self, path: Path, split: str, drawn: Sequence[DrawnConversation]) -> None:
        """A file as INSCIT publishes it."""
        write_inscit(path, [conversation.record for conversation in drawn])

    def truth(self, split: str, drawn: DrawnConversation) -> dict[str, Any]:
        """How each question asks, what for, which case it is; what the labels state, and which of them went on."""
        return {
            "id": drawn.id,
            "split": split,
            "article": drawn.article.title,
            "turns": [
                {
                    "form": turn.question.form,
                    "case": turn.question.case,
                    "entities": [article.title for article in turn.question.articles],
                    "attribute": turn.question.attribute,
                    "period": turn.question.period,
                    "standalone": turn.question.standalone,
                    "asked": statement_rows(turn.question.asked),
                    "labels": [statement_rows(one.statements) for one in turn.answers],
                    "continued": turn.continued,
                }
                for turn in drawn.turns
            ],
        }

    def vocabulary(self) -> list[str]:
        """Texts in which every word of the world occurs in every form that passages, users, annotators and prompts of
        readers use.
        """
        kinds, periods, names = list(lexicon.ENTITY_KINDS), list(lexicon.PERIODS), lexicon.FIRST_NAMES
        texts = [NO_INFORMATION]
        for number, first in enumerate(names):
            name, kind = f"{first} {lexicon.LAST_NAMES[number % len(lexicon.LAST_NAMES)]}", kinds[number % len(kinds)]
            texts += [f"{name} is a {kind}.", f"{name} ({kind})", f"Topics of the {kind} {name}", f"{name}:{number}"]
        name = f"{names[0]} {lexicon.LAST_NAMES[0]}"
        for attribute, words in lexicon.USER_WORDS.items():
            values = lexicon.VALUES.get(attribute, [f"{kind} {name}" for kind in kinds])
            for number, value in enumerate(values):
                period, entity = periods[number % len(periods)], f"the {kinds[0]} {name}"
                fact = Statement(kinds[0], name, attribute, period, value)
                texts += [told([fact]), related(f"the {period} period", [fact]), related(f"the {attribute}", [fact])]
                texts.append(offered([fact.option, replace(fact.option, kind=kinds[1]), replace(fact, period="late")]))
                sentence = PASSAGE_SENTENCES[number % len(PASSAGE_SENTENCES)]
                texts.append(sentence.format(attribute=attribute, entity=entity, period=period, value=value))
            texts.append(lexicon.UNKNOWN_FILLER.format(attribute=attribute))
            templates = [template for group in lexicon.QUESTION_FORMS.values() for template in group]
            for word, (number, template) in product(words, enumerate(templates)):
                kind = lexicon.ENTITY_KINDS[kinds[number % len(kinds)]]
                period = lexicon.PERIODS[periods[number % len(periods)]]
                texts.append(lexicon.question_text(template, word, f"the {kind} {name}", kind, period))
        for section, period in product(lexicon.SECTIONS, periods):
            texts.append(f"- {section}\n- - {period.capitalize()} period")
            titles = "|".join((name, section, f"{period.capitalize()} period"))
            texts.append(evidence_text(Passage.uncut(f"{name}:0", texts[0], titles)))
        texts.append(conversation_text(["of"] * 41))
        for kind in RESPONSE_TYPES:
            texts += with_type(["of"], kind)
        texts.append(joint_target(NO_INFORMATION, [f"{name}:0", f"{name}:1"]))
        topics = [Statement(kinds[0], name, lexicon.TOPICS, "", section.lower()) for section in lexicon.SECTIONS]
        return list(dict.fromkeys([*texts, told(topics), offered([one.option for one in topics[:1]])]))

    def in_words(self, splits: Mapping[str, Sequence[DrawnConversation]]) -> str:
        """How many passages, articles, conversations and turns."""
        passages = sum(len(article.passages) for article in self.drawn_articles)
        counts = [
            f"{len(drawn)} {split} ({sum(len(one.turns) for one in drawn)} turns)" for split, drawn in splits.items()
        ]
        return f"{passages} passages of {len(self.drawn_articles)} articles, conversations: {', '.join(counts)}"


def _page(article: WorldArticle) -> dict[str, Any]:
    passages = [{"id": one.id, "titles": list(one.titles), "text": one.text} for one in article.passages]
    return {"title": article.title, "passages": passages}
