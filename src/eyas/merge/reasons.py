"""Why a row is not in the corpus: the reasons, and what they mean."""

from __future__ import annotations

MAX_LINE = 64 << 20
"""Bytes of a line, some eight million tokens; longer ones are dropped unread, which bounds the memory."""

LINE_TOO_LONG = "line_too_long"
NOT_UTF8 = "not_utf8"
NAN = "nan"
NOT_JSON = "not_json"
NOT_OBJECT = "not_object"
DUPLICATE_KEY = "duplicate_key"
NO_IDS = "missing_input_ids"
NO_MASK = "missing_loss_mask"
NOT_LIST = "not_a_list"
EMPTY = "empty"
UNEQUAL = "unequal_lengths"
NOT_INTEGER = "not_an_integer"
NEGATIVE = "negative_id"
TOO_LARGE = "id_too_large"
OUTSIDE = "outside_vocabulary"
BAD_MASK = "mask_not_0_or_1"
BAD_ID = "bad_row_id"
BAD_FLAGS = "bad_flags"
TOO_FEW_LABELS = "too_few_labels"
DUPLICATE = "duplicate"
NOT_SAMPLED = "not_sampled"
OVER_CAP = "over_cap"
OVER_CAP_TOKENS = "over_cap_tokens"

INVALID = (
    LINE_TOO_LONG, NOT_UTF8, NAN, NOT_JSON, NOT_OBJECT, DUPLICATE_KEY, NO_IDS, NO_MASK, NOT_LIST, EMPTY, UNEQUAL,
    NOT_INTEGER, NEGATIVE, TOO_LARGE, OUTSIDE, BAD_MASK, BAD_ID, BAD_FLAGS, TOO_FEW_LABELS,
)  # fmt: skip
"""Reasons that lie in the row itself, in the order in which they are looked for."""

CHOSEN = (DUPLICATE, NOT_SAMPLED, OVER_CAP, OVER_CAP_TOKENS)
"""Reasons that lie in the user's options."""

MEANING = {
    LINE_TOO_LONG: f"the line is longer than {MAX_LINE >> 20} MiB",
    NOT_UTF8: "the line is not UTF-8",
    NAN: "NaN or Infinity, which JSON does not have",
    NOT_JSON: "the line is not JSON (broken off?)",
    NOT_OBJECT: "the line is not a JSON object",
    DUPLICATE_KEY: "a key occurs twice in one object",
    NO_IDS: "no input_ids",
    NO_MASK: "no loss_mask",
    NOT_LIST: "input_ids or loss_mask is not a list",
    EMPTY: "no tokens",
    UNEQUAL: "input_ids and loss_mask differ in length",
    NOT_INTEGER: "an id is not an integer",
    NEGATIVE: "an id is negative",
    TOO_LARGE: "an id does not fit 32 bits",
    OUTSIDE: "an id is outside the vocabulary",
    BAD_MASK: "a mask value is neither 0 nor 1",
    BAD_ID: "the row's id is neither text nor an integer",
    BAD_FLAGS: "flags is not a list of texts",
    TOO_FEW_LABELS: "too few labels after the cut",
    DUPLICATE: "an earlier row has the same ids and mask",
    NOT_SAMPLED: "not drawn by the sample",
    OVER_CAP: "over the dataset's cap of rows",
    OVER_CAP_TOKENS: "over the dataset's cap of tokens",
}
