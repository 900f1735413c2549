"""The demo's prompts: enough of them, varied, and honestly held out."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import pytest

PROMPTS = Path(__file__).parents[2] / "recipes" / "prompts"
TRAINING_FILES = {
    "chat": "chat.jsonl",
    "code": "code.json",
    "maths": "maths.jsonl",
    "rewriting": "rewriting.json",
    "extraction": "extraction.jsonl",
}
HELD_OUT_FILES = {kind: f"heldout-{kind}.jsonl" for kind in TRAINING_FILES}

SHARED_RUN = 8
TEMPLATE_WORDS = 5
PROMPTS_PER_TEMPLATE = 5
MOST_WORDS = 110
MOST_SYSTEM_MESSAGES_PER_FILE = 10

HELD_OUT_SHA256 = "94b69e815dd5aeae9e75270da9b707f64aadded9ea709c66e3065b376979f451"


def read_records(name):
    text = (PROMPTS / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


def instruction_of(record):
    if "messages" in record:
        return [m["content"] for m in record["messages"] if m["role"] == "user"][-1]
    return record["instruction"]


def text_of(record):
    if "messages" in record:
        return "\n".join(m["content"] for m in record["messages"])
    return record["instruction"] + "\n" + record["input"]


def task_of(record):
    """The text without a system message: two prompts that differ only there are the same task."""
    if "messages" in record:
        return instruction_of(record)
    return text_of(record)


def words_of(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def runs_of(text):
    words = words_of(text)
    return {tuple(words[i : i + SHARED_RUN]) for i in range(len(words) - SHARED_RUN + 1)}


def template_of(record):
    text = instruction_of(record).lower()
    # Only double quotes: a single one is nearly always an apostrophe.
    text = re.sub(r'"[^"]*"', " Q ", text)
    text = re.sub(r"\d+", "0", text)
    return " ".join(re.findall(r"[a-z0-9']+|Q", text)[:TEMPLATE_WORDS])


def training_records():
    return list(chain.from_iterable(read_records(name) for name in TRAINING_FILES.values()))


def held_out_records():
    return list(chain.from_iterable(read_records(name) for name in HELD_OUT_FILES.values()))


def all_records():
    return training_records() + held_out_records()


def test_five_training_datasets_hold_at_least_500_prompts():
    counts = {kind: len(read_records(name)) for kind, name in TRAINING_FILES.items()}
    assert len(counts) == 5, f"the demo promises five kinds of dataset, but has {sorted(counts)}"
    assert sum(counts.values()) >= 500, f"the demo promises at least 500 training prompts, but has {counts}"


def test_every_kind_has_at_least_100_training_prompts():
    counts = {kind: len(read_records(name)) for kind, name in TRAINING_FILES.items()}
    small = {kind: count for kind, count in counts.items() if count < 100}
    assert not small, f"the drafter would see too little of these kinds of task: {small}"


def test_held_out_set_has_eight_prompts_of_every_kind():
    counts = {kind: len(read_records(name)) for kind, name in HELD_OUT_FILES.items()}
    assert counts == dict.fromkeys(TRAINING_FILES, 8), (
        f"acceptance is reported over 40 held-out prompts, 8 a kind, but there are {counts}"
    )


@pytest.mark.parametrize("name", ["chat.jsonl", "maths.jsonl", "extraction.jsonl", *HELD_OUT_FILES.values()])
def test_openai_files_hold_one_user_turn_a_line(name):
    roles_allowed = (["user"], ["system", "user"])
    wrong = [
        record.get("id")
        for record in read_records(name)
        if set(record) != {"id", "messages"}
        or [m["role"] for m in record["messages"]] not in roles_allowed
        or not all(m["content"].strip() for m in record["messages"])
    ]
    assert not wrong, (
        f"{name}: not a single non-empty user turn in OpenAI form, so it cannot be answered: {wrong}"
    )
    with_system = sum(len(record["messages"]) == 2 for record in read_records(name))
    assert with_system <= MOST_SYSTEM_MESSAGES_PER_FILE, (
        f"{name}: {with_system} prompts set a system message; the demo is about the plain chat format"
    )


@pytest.mark.parametrize("name", ["code.json", "rewriting.json"])
def test_alpaca_files_hold_an_instruction_and_an_input(name):
    wrong = [
        record.get("id")
        for record in read_records(name)
        if set(record) != {"id", "instruction", "input"}
        or not record["instruction"].strip()
        or not isinstance(record["input"], str)
    ]
    assert not wrong, f"{name}: not in Alpaca form, so the import would refuse or misread it: {wrong}"


def test_every_rewriting_prompt_brings_the_text_to_rewrite():
    empty = [r["id"] for r in read_records(TRAINING_FILES["rewriting"]) if not r["input"].strip()]
    assert not empty, f"the model is asked to rewrite a text that it is not given: {empty}"


def test_ids_are_unique_over_all_prompts():
    counts = Counter(record["id"] for record in all_records())
    repeated = [identifier for identifier, count in counts.items() if count > 1]
    assert not repeated, f"a result could not be traced back to one prompt: {repeated}"


def test_no_prompt_occurs_twice():
    by_words = defaultdict(list)
    for record in all_records():
        by_words[tuple(words_of(task_of(record)))].append(record["id"])
    repeated = [ids for ids in by_words.values() if len(ids) > 1]
    assert not repeated, f"the same prompt counts more than once: {repeated}"


def test_no_held_out_prompt_shares_eight_words_in_a_row_with_training():
    owners = defaultdict(list)
    for record in training_records():
        for run in runs_of(text_of(record)):
            owners[run].append(record["id"])
    shared = [
        f"{record['id']} and {owner}: '{' '.join(run)}'"
        for record in held_out_records()
        for run in sorted(runs_of(text_of(record)))
        for owner in owners.get(run, [])
    ]
    assert not shared, (
        "the acceptance measured on the held-out set would partly be memory of the training text:\n"
        + "\n".join(shared)
    )


def test_no_held_out_prompt_opens_like_a_training_prompt():
    owners = defaultdict(list)
    for record in training_records():
        owners[template_of(record)].append(record["id"])
    shared = [
        f"{record['id']} and {owners[template_of(record)]}: '{template_of(record)}'"
        for record in held_out_records()
        if template_of(record) in owners
    ]
    listed = "\n".join(shared)
    assert not shared, f"the held-out set repeats templates that the drafter was trained on:\n{listed}"


def test_no_template_makes_up_more_than_five_training_prompts():
    by_template = defaultdict(list)
    for record in training_records():
        by_template[template_of(record)].append(record["id"])
    crowded = {t: ids for t, ids in by_template.items() if len(ids) > PROMPTS_PER_TEMPLATE}
    assert not crowded, (
        f"the drafter would learn one sentence frame instead of a kind of task, from prompts like: {crowded}"
    )


def test_template_ignores_numbers_and_quoted_strings():
    def template(text):
        return template_of({"messages": [{"role": "user", "content": text}]})

    first, second = template('Add 12 to "one" and print it'), template('Add 7 to "a b c" and stop')
    assert first == second == "add 0 to Q and", (
        "prompts that differ only in numbers or quoted words would pass as different templates"
    )


def test_every_prompt_is_short_enough_for_the_demo_model():
    too_long = {
        record["id"]: len(text_of(record).split())
        for record in all_records()
        if len(text_of(record).split()) > MOST_WORDS
    }
    assert not too_long, f"the prompt would crowd out the answer in the demo's short sequences: {too_long}"


def test_held_out_set_is_the_one_that_was_measured():
    digest = hashlib.sha256()
    for name in sorted(HELD_OUT_FILES.values()):
        digest.update((PROMPTS / name).read_bytes())
    assert digest.hexdigest() == HELD_OUT_SHA256, (
        "the held-out set is never changed after the first measurement, or the numbers before and after "
        "could not be compared; more training data is the way up"
    )
