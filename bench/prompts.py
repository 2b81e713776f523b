"""Prompts of the benchmarks on a real model."""

from __future__ import annotations

CODE = """def total_price(items, discount):
    total = 0
    for item in items:
        if item.price > 0:
            total += item.price * item.count
    if discount > 0:
        total -= total * discount
    return total


def total_weight(items, packaging):
    total = 0
    for item in items:
        if item.weight > 0:
            total += item.weight * item.count
    if packaging > 0:
        total += packaging * len(items)
    return total
"""

ARTICLE = (
    "The town library will stay open until nine in the evening from the first of October. "
    '"We have listened to the people who work during the day," said the head librarian, Maria Lindqvist. '
    '"They asked for longer evenings, and longer evenings they will get." '
    "The town council voted for the change by eleven votes to four. "
    '"It costs us two salaries a year, and it is worth every coin," said the mayor, Anders Holm. '
    "The children's section will still close at six in the evening."
)

# Answers to these repeat long stretches of the prompt: what prompt lookup is for.
REPEATING = {
    "code edit": (
        "Rename the variable `total` to `result` in this code and write the whole code again.\n\n"
        f"```python\n{CODE}```"
    ),
    "summary with quotes": (
        f"Summarise this article. Quote every sentence that a person said, word for word.\n\n{ARTICLE}"
    ),
}

MIXED = [
    *REPEATING.values(),
    "What is the capital of France?",
    "Count from one to thirty in words.",
    "Write a short poem about the sea.",
    "Explain in three sentences why the sky is blue.",
    "List the days of the week, then list them again in reverse order.",
    "Translate to French: The cat sleeps on the warm stove.",
    "Write a Python function that checks whether a number is prime.",
    "Give me a recipe for pancakes with quantities.",
    "Repeat after me, three times: a man, a plan, a canal, Panama.",
    "Who wrote The Old Man and the Sea, and what is it about?",
    "Write a table of the squares of the numbers 1 to 12.",
    "Name ten animals in alphabetical order.",
    "Write an email that declines an invitation to a dinner politely.",
    "What are the differences between a list and a tuple in Python?",
    "Tell a story that begins with: It was raining again.",
    "Convert this list to JSON: name Ada, age 36, city London; name Alan, age 41, city Wilmslow.",
    "Explain photosynthesis to a child.",
    "Write the alphabet, one letter a line.",
]
