"""Statements of one iteration in Promela: what a host sees, what the scheduler reads, what comes of it.

`rounds.py` puts them together. `TIER` in front of a place stands for where the facts and lists of the size begin.
"""

from __future__ import annotations

from typing import Final

# A request that has ended unseen goes once a late host has seen it.
LAND: Final = """\
request = 0;
do :: request < N ->
  if :: sees_at[to_code[request]] > 0 ->
    to_code[request] = sees_at[to_code[request]];
    if :: status_at[to_code[request]] == ENDED -> to_pages[request] = 0 :: else -> skip fi
  :: else -> skip
  fi;
  request++;
:: else -> break
od;
"""

BEGIN: Final = """\
request = 0;
do :: request < N ->
  to_code[request] = code_of[request]; to_pages[request] = pages_of[request];
  request++;
:: else -> break
od;
"""

# Who would give pages back has a round in flight: once that is seen, all is decided again.
AGAIN: Final = """\
again = 0; place = 0;
do :: place < lives -> again = again + (d_actions[place] == {preempted} -> 1 : 0); place++ :: else -> break od;
if :: again > 0 && landed == 0 -> landed = 1;
{land}
:: else -> again = 0
fi;
"""

# Which size so many running requests get, where the policy has tiers: where its facts and lists begin.
TIER: Final = """\
tier = 0; request = 0;
do :: request < N ->
  tier = tier + (status_at[to_code[request]] == RUNNING -> 1 : 0);
  request++;
:: else -> break
od;
tier = tier_at[tier];
"""

PREPARE: Final = """\
lives = 0; waits = 0; d_promised = 0; d_budget = BUDGET; request = 0;
do :: request < N ->
  local_ = to_code[request];
  if :: status_at[local_] == WAITING ->
    queue_take[waits] = take_at[local_];
    queue_longest[waits] = longest_at[local_];
    queue_fill[waits] = fill_at[local_];
    waiting_request[waits] = request;
    d_admit_tokens[waits] = 0;
    waits++;
  :: status_at[local_] == PREFILLING || status_at[local_] == RUNNING ->
    d_running[lives] = (status_at[local_] == RUNNING -> 1 : 0);
    d_pages[lives] = to_pages[request];
    d_need[lives] = (status_at[local_] == RUNNING -> need_at[TIER local_] : to_pages[request]);
    d_left[lives] = left_at[local_];
    d_rows[lives] = rows_at[TIER local_];
    d_actions[lives] = 0;
    d_tokens[lives] = 0;
    live_request[lives] = request;
    d_promised = d_promised + longest_at[local_];
    lives++;
  :: else -> skip
  fi;
  request++;
:: else -> break
od;
"""

CHOOSE: Final = """\
held = 0; place = 0;
do :: place < lives ->
  request = live_request[place];
  local_ = to_code[request];
  to_pages[request] = d_owned[place];
  if :: d_actions[place] == {preempted} ->
    list_of[request] = admits_at[(TIER local_) * ADMITS_WIDTH];
    to_pages[request] = 0;
  :: d_actions[place] == {runs} ->
    list_of[request] = prefills_at[(TIER local_) * PREFILLS_WIDTH];
  :: d_actions[place] != {preempted} && d_actions[place] != {runs} && d_tokens[place] > 0 ->
    list_of[request] = prefills_at[(TIER local_) * PREFILLS_WIDTH + d_tokens[place]];
  :: else -> skip
  fi;
  if :: list_of[request] == 0 ->
    /* Nothing runs, and a late host catches up: a request that had ended unseen goes. */
    to_code[request] = sees_at[local_]
  :: else -> skip
  fi;
  held = held + to_pages[request];
  if :: status_at[to_code[request]] == ENDED -> to_pages[request] = 0 :: else -> skip fi;
  place++;
:: else -> break
od;
place = 0;
do :: place < d_result ->
  request = waiting_request[place];
  list_of[request] = admits_at[(TIER to_code[request]) * ADMITS_WIDTH + d_admit_tokens[place]];
  to_pages[request] = queue_take[place];
  held = held + to_pages[request];
  place++;
:: else -> break
od;
assert(held <= K); {pool}
"""

OUTCOMES: Final = """\
who = 0;
do
:: who < N && list_of[who] == 0 -> who++
:: who < N && list_of[who] > 0 ->
  /* Every option of the list is reached in one way. */
  at = lists[list_of[who] - 1];
  do :: at + 1 < lists[list_of[who]] -> at++ :: break od;
  skip; /* Spin lets no loop end at the door of a d_step. */
  d_step {
"""

SETTLED: Final = """\
    if :: target_of[at] == 0 -> lost = 1
    :: else ->
      to_code[who] = target_of[at] - 1;
      if :: status_at[to_code[who]] == WAITING -> to_pages[who] = 0
      :: else ->
        assert(used_of[at] <= to_pages[who] * PAGE_SIZE); {slots}
        if :: status_at[to_code[who]] == ENDED -> to_pages[who] = 0 :: else -> skip fi
      fi
    fi;
    at = 0; who++
  }
:: who == N -> break
od;
skip;
d_step {
  /* A move that leads nowhere changes nothing; one that changes nothing can repeat for ever. */
  same = 1; request = 0;
  do :: request < N ->
    if :: !lost -> same = (same && code_of[request] == to_code[request] && pages_of[request] == to_pages[request]);
      code_of[request] = to_code[request]; pages_of[request] = to_pages[request]
    :: else -> same = 0
    fi;
    list_of[request] = 0; to_code[request] = 0; to_pages[request] = 0;
    request++
  :: else -> break
  od;
  lost = 0; who = 0;
  assert(!same); {eventually}
}
"""
