"""Whether a sentence of a document is told to who answers, and so is no evidence: rules of English.

They know what such sentences usually say, not what they mean: one that says it otherwise is a sentence like any other,
and a sentence about such commands is taken for one (docs/ask.md has the shares).
"""

from __future__ import annotations

import re

_LEAVE = (
    r"\b(?:ignor|disregard|forget|overrid|bypass|discard|overlook)(?:e|ing|s|es)?\b|\bset aside\b|"
    r"\bpay no (?:attention|heed)\b|\bleave\b(?=.{0,40}\b(?:aside|out)\b)|"
    r"\b(?:do not|don't|never|must not|should not) (?:\w+ ){0,2}"
    r"(?:use|consult|consider|trust|read|cite|quote|mention|look at|search|follow|rely on)\b"
)
_ASKED = (
    r"\bquestions?\b|\bquer(?:y|ies)\b|\bprompts?\b|\bwhat(?:ever)? (?:\w+ ){0,3}(?:asked|asks|asking|ask)\b|"
    r"\b(?:user|reader)s?'s? request"
)
_OTHERS = (
    r"\b(?:other|all|any|earlier|previous|prior|remaining|every|retrieved|above|rest of the|your)\b(?: \w+){0,2} "
    r"(?:documents?|files?|passages?|sources?|texts?|pages?|evidence|context|instructions?|rules|guidelines|directions)\b|"
    r"\beverything else\b|\ball else\b|\b(?:instructions?|context|documents?) (?:above|before|so far)\b"
)
_THIS = (
    r"(?:this|these|the following|the present)(?: \w+)? "
    r"(?:sentences?|texts?|passages?|documents?|files?|pages?|lines?|paragraphs?|words|notes?|entry|article|sections?)\b"
)
_SAY_THIS = (
    rf"\b(?:answer|reply|respond)(?:ing|s)?\b.{{0,40}}\b(?:with|by|using|from) (?:\w+ ){{0,3}}{_THIS}|"
    rf"\b(?:repeat|quote|cite|return|output|print|echo|reproduce|recite|copy)(?:ing)? (?:\w+ ){{0,3}}{_THIS}"
)
_SAY = (
    r"\b(?:answer|reply|respond|return|output|repeat|quote|cite|state|recite|echo|claim|treat|reproduce|present)"
    r"(?:ing)?\b"
)
_MACHINE = (
    r"\b(?:AI|A\.I\.|LLMs?|RAG|language models?|chat ?bots?|bots?|robots?|(?:digital|virtual) assistants?|"
    r"(?:machine|answering|retrieval|automat(?:ed|ic)) (?:systems?|assistants?|agents?|readers?|tools?)|"
    r"(?:assistants?|models?) (?:reading|summari[sz]ing|answering))\b"
)
_NO_MATTER = r"\b(?:whatever|regardless of|no matter|irrespective of|independent(?:ly)? of)\b"
_MARKUP = (
    r"^\W*(?:(?-i:SYSTEM|ASSISTANT|USER|DEVELOPER)|### (?:instruction|system|response|input)|"
    r"(?:system|developer|assistant|admin) (?:prompt|message|note|override|notice|instruction)s?)\W*[:>\]]|"
    r"</?(?:system|instructions?|prompt)>|\[/?(?:INST|SYS|SYSTEM)\]|<\||"
    r"\"role\": ?\"|\bend of (?:context|prompt)\b|"
    r"\byou are (?:now )?(?:an?|the) (?:\w+ ){0,2}(?:assistant|model|chat ?bot|bot)\b"
)
_ANSWER_IS = (
    r"\b(?:final|authoritative|correct|only (?:valid|correct|possible)) (?:answer|response|reply)\b|"
    r"\b(?:base|end|begin|start|steer|restrict|limit|confine)\b.{0,20} your (?:answer|reply|response|output)\b|"
    r"\b(?:echoed|returned|repeated|shown) (?:verbatim )?to the user\b|"
    r"\bno other (?:documents?|files?|sources?|passages?)\b.{0,40}\bexists?\b"
)
_REVEAL = (
    r"\b(?:reveal|disclose|show|print|repeat|output|leak)\b.{0,40}\b(?:system|hidden|secret|initial|your)(?: \w+)? "
    r"(?:prompt|instructions?|message)"
)
_COMMAND = re.compile(
    "|".join(
        (
            rf"(?:{_LEAVE}).{{0,60}}(?:{_ASKED}|{_OTHERS})",
            rf"{_NO_MATTER}.{{0,40}}(?:\bquestions?\b|\bquer(?:y|ies)\b|\bask(?:ed|s|ing)?\b)",
            rf"{_MACHINE}.{{0,120}}{_SAY}",
            rf"{_SAY}.{{0,120}}{_MACHINE}",
            *(_SAY_THIS, _ANSWER_IS, _MARKUP, _REVEAL),
        )
    ),
    re.I | re.S,
)


def is_command(sentence: str) -> bool:
    """Whether a sentence tells who answers what to leave out, or what to say."""
    return _COMMAND.search(sentence) is not None
