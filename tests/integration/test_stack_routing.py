"""What the Endpoint Picker's choice is worth: with shared prefixes nearly every prompt is found where it was computed before,
far more often than by turns, and the load is still spread."""

import concurrent.futures
import random

import pytest
from harness.stack import CHAT, chat, start_stack, wait_tidy

DOCUMENTS = 13  # odd, so that two engines by turns both see all of them
ROUNDS = 6
WORKERS = 4  # clients at once
# Each cache holds some eight of the documents: enough when they are divided, too few for an engine that sees all of them.
CACHE = ("--blocks", "470")
PACE = ("--prefill-us-per-token", "50", "--decode-us-per-token", "0")


def documents(generator):
    """Texts of about fifty blocks, unlike each other from the first block on."""
    return ["".join(generator.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(2400)) for _ in range(DOCUMENTS)]


def requests(generator):
    texts = documents(generator)
    order = list(range(DOCUMENTS)) * ROUNDS  # as users who ask in turn
    return [chat(f"{texts[index]} question {number}", max_tokens=2) for number, index in enumerate(order)]


def hit_rate(engines):
    states = [engine.state() for engine in engines]
    return (sum(state["prefix_cache"]["hits"] for state in states) /
            sum(state["prefix_cache"]["queries"] for state in states))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_shared_prefixes_are_found_again_and_the_load_is_spread(engine):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies = requests(random.Random(seed))
    with start_stack(engine=engine, flags=PACE, prefill_flags=CACHE) as stack, \
            concurrent.futures.ThreadPoolExecutor(WORKERS) as clients:
        statuses = list(clients.map(lambda body: stack.post(CHAT, body)[0], bodies))
        assert statuses == [200] * len(bodies)
        wait_tidy(stack)
        aware = hit_rate(stack.prefills)
        served = [engine.state()["prefill_requests"] for engine in stack.prefills]
        decoded = [engine.state()["decode_requests"] for engine in stack.decodes]

        # The same requests by turns, on engines of the same kind that answer alone.
        by_turns = [stack.start_engine("prefill-engine.ini", "--engine", engine, *PACE, *CACHE) for _ in stack.prefills]
        for number, body in enumerate(bodies):
            assert by_turns[number % len(by_turns)].post(CHAT, body).status == 200
        turns = hit_rate(by_turns)

    best = (ROUNDS - 1) / ROUNDS
    print(f"hit rate {aware:.2f}, by turns {turns:.2f}, best {best:.2f}; prefill {served}, decode {decoded}")
    assert aware > 0.7 * best
    assert aware > turns + 0.4
    assert min(served) > 0.2 * len(bodies), served
    assert min(decoded) > 0.2 * len(bodies), decoded
