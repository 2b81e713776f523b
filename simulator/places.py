"""Places in the arrays of a compiled run: plain arrays, as numba compiles tuples of named ones many times slower."""

from __future__ import annotations

# `world`, int64: what holds for the whole run, then what moves.
(ADMISSION, MIXED, BUDGET, MAX_RUNNING, POOL_PAGES, PAGE_SIZE, GROW, QUEUE_SEEN, CONCURRENCY, REQUESTS, WINDOW,
 MARGIN, WAIT, PREFILL, END, ON_ADMIT, ON_CHUNK, ON_FIRST, ON_PREEMPT, FILL_OF, FIRST_EMITS, ARGS, RESULTS,
 MOST_EMPTY, TIERED, FEWEST, MOST, STOP_NS, ITERATIONS_LEFT, NOW_NS, END_NS, IN_FLIGHT, LOADED, NEXT, FRESH, RETURNED,
 LIVE, AT_ROUND, ITERATIONS, LAUNCHES, EMPTY, FINISHED, RECOMPUTED, TOKENS, FIRSTS, ENDED, PREEMPTED_NOW,
 ADMITTED_NOW, DEVICE_NS, BUSY_NS, SEQUENCES, LINE_NS, WIDTH_NS, BUCKET,
 BUCKET_END_NS, KEEP, PROVISIONAL, SCRATCH, RECALLS, RUNS_FREE, HIT_SLOTS) = range(61)  # fmt: skip
WORLD = HIT_SLOTS + 1
# `states`, int64 [states, ...]: a state, the work of one block where all its counts are constant, and the members of
# the present launch.
(ROUND, AHEAD, BLOCK_ROWS, MID_ROUND, HAS_ROWS, EVENT, EMITS, QUERY, DRAWS, SEGMENTS, CONSTANT, ROWS, LOGITS, ADAPTER,
 SAMPLED, PAIRS, KEPT, JUDGED, SCRATCHED, SHAPE, MASK, MASK_SIZE, DRAFTS, FROM, TO) = range(25)  # fmt: skip
STATE = TO + 1
# Shapes of a block mask: any, where every row sees all rows up to itself, or all rows.
ANY, CAUSAL, FULL = range(3)
# `cells`, int64 [..., live requests], oldest first: scratch, then what a request keeps, the columns of the table last;
# behind them stand arguments (from `world[ARGS]`) and results (from `world[RESULTS]`) of the table's function.
(AT, NEED, RUNNING, LEFT, BUDGET_ROWS, OWNED, ADMIT_TOKENS, FIRST_OF, ENDED_OF, TRANSITION, EMITTED_NOW, ACCEPTED_NOW,
 REQUEST, PAGES, ACTION, CHUNK) = range(16)  # fmt: skip
COLUMNS = CHUNK + 1
(STATE_OF, PROMPT, LIMIT, EMITTED, KV) = range(COLUMNS, COLUMNS + 5)
# `log`, int64 [..., window]: what is known of each request, and what is counted; a request stands at its number modulo
# the window, which is a power of two: `world[WINDOW]` is one less. `world[LOADED]` requests have been written there.
(ARRIVAL, PROMPT_TOKENS, OUTPUT_TOKENS, TAKE, LONGEST, FILL, ADMITTED_NS, FIRST_TOKEN_NS, FINISH_NS, EMITTED_TOKENS,
 PREFILL_EMITTED, ROUNDS, FORWARDS, PREEMPTIONS, ACCEPTED, DRAFTED, HIT, TEXT_KIND, LAST) = range(19)  # fmt: skip
LOG = LAST + 1
# `drawing`, int64 [states, draws, ...]: the law, the row of `cells` that takes the count, where its most stands (a row
# of `cells`, or 0 for a constant), whether drafts are judged, whether what is drawn is taken from the most, the first
# row of the law among the tails, whether it has one for each kind of request and each judgement before, and whether
# the tails say how many drafts a launch of so many requests is granted (`outcomes.Granted`).
(LAW, ARGUMENT, LARGEST_AT, LARGEST, JUDGES, DOWN, TAIL, VARIES, GRANTS) = range(9)
DRAW = GRANTS + 1
# `segments`, int64 [states, segments, ...].
(COUNT_AT, FIRST_ROW, IN_LOGITS, IN_ADAPTER, IN_SAMPLED, KIND) = range(6)
SEGMENT = KIND + 1
# `levels`, int64 [3, levels]: what holds now, the largest so far; rows of `line` in the same order, amounts behind.
CURRENT, PEAK = range(2)
USED_PAGES, COMMITTED_SLOTS, PROVISIONAL_SLOTS, SCRATCH_SLOTS, RUNNING_REQUESTS, WAITING_REQUESTS = range(6)
LEVELS = 6
# What a request's judgement before the present one found: there was none, all live drafts were accepted, or one was
# rejected.
AT_START, AFTER_ALL, AFTER_REJECTION = range(3)
LASTS = 3
# Why a compiled run comes back.
ENDS, PAUSES, WAITS_UNTIL, STUCK, LOADS, RESIZES = range(6)
