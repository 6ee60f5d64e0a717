"""The Markdown tables and the JSON file."""

import json
import os
import statistics
import time

from .goals import SIDECAR_TABLE, verdict

_DRIFT = 0.10


def ratios_of(row, rounds, product):
    found = (row.compare(current.values.get(row.id, {}), product) for current in rounds)
    return [ratio for ratio in found if ratio is not None]


def _spread(numbers):
    if not numbers:
        return "–"
    text = f"{statistics.median(numbers):.2f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.2f}–{max(numbers):.2f})"


def _limit(row, value):
    return "" if value is None else f"{'≥' if row.higher else '≤'} {value:g}"


def _drifted(row, ratios, stored):
    if not stored:
        return False
    median = statistics.median(ratios)
    return median < stored * (1 - _DRIFT) if row.higher else median > stored * (1 + _DRIFT)


def goals_table(rounds, baseline, table=SIDECAR_TABLE):
    lines = [f"| # | lower is better | {table.subject}: median (min–max) | must | stretch | verdict |",
             "|---|---|---|---|---|---|"]
    for row in table.rows:
        if not any(row.id in current.values for current in rounds):
            continue
        ratios = ratios_of(row, rounds, row.subject or table.subject)
        if not ratios:
            continue
        outcome = verdict(row, ratios) or "for information"
        stored = baseline.get(row.id)
        if _drifted(row, ratios, stored):
            outcome += f", drifted from {stored:.2f}"
        text = row.text + (" (higher)" if row.higher else "")
        lines.append(f"| {row.id} | {text} | {_spread(ratios)} | {_limit(row, row.must)} | {_limit(row, row.stretch)} | "
                     f"{outcome} |")
    return lines if len(lines) > 2 else [f"No row for the {table.subject}."]


def products_table(rounds, table=SIDECAR_TABLE):
    lines = ["| # | | product | measured: median (min–max) | compared: median (min–max) |", "|---|---|---|---|---|"]
    for row in table.rows:
        for product in table.products:
            values = [current.values[row.id][product] for current in rounds
                      if product in current.values.get(row.id, {})]
            if values:
                compared = "" if product == "direct" else _spread(ratios_of(row, rounds, product))
                lines.append(f"| {row.id} | {row.text} | {product} | {_spread(values)} {row.unit} | {compared} |")
    return lines if len(lines) > 2 else ["Nothing was measured."]


def disturbances(bench):
    """Runs in which the driver's core was full, or somebody else worked on the product's core."""
    notes = []
    timed = [entry for entry in bench.raw if "cores" in entry and entry.get("seconds")]
    overloaded = sum(entry.get("max_backlog", 0) > entry.get("req_per_s", 0) / 10 for entry in timed)
    if overloaded:
        notes.append(f"The open loop fell more than 0.1 s behind in {overloaded} runs: those tails show an overload.")
    streams = [entry for entry in timed if "expected_events" in entry]
    merged = sum(entry["events"] < 0.95 * entry["expected_events"] or entry["receives"] < 0.9 * entry["events"]
                 for entry in streams)
    if merged:
        notes.append(f"Events came late or several at once in {merged} of {len(streams)} stream runs, which makes each "
                     "one look cheap: C1 and C2 need a calmer machine.")
    shared = bench.product_core == bench.driver_core
    full = sum(entry["cores"].get(str(bench.driver_core), 0) > 0.97 for entry in timed)
    if full:
        notes.append(f"The driver's core was full in {full} of {len(timed)} runs: their requests per second say "
                     "nothing about the product; CPU per request still holds.")
    foreign = [entry["cores"].get(str(bench.product_core), 0) - entry["cpu_us"] / 1e6 / entry["seconds"]
               for entry in timed if "cpu_us" in entry]
    disturbed = sum(share > 0.15 for share in foreign)
    if shared:
        notes.append("Product and driver shared one core: latencies are meaningless.")
    elif disturbed:
        notes.append(f"Others, or the host, took more than 15 % of the product's core in {disturbed} of "
                     f"{len(foreign)} runs.")
    return notes


def lost_ratios(rounds, table=SIDECAR_TABLE):
    """Nothing is dropped silently: rounds whose values gave no ratio."""
    notes = []
    for row in table.rows:
        for product in table.products[1:]:
            measured = sum(product in current.values.get(row.id, {}) for current in rounds)
            lost = measured - len(ratios_of(row, rounds, product))
            if lost:
                notes.append(f"{row.id} {product}: no ratio in {lost} of {measured} rounds: the peer is missing, or "
                             "noise was larger than what is compared.")
    return notes


def markdown(bench, rounds, facts, baseline, complete, table=SIDECAR_TABLE):
    lines = ["# Side by side", "", f"Machine: {facts['machine']}  ", f"Commit: {facts['commit']}  ",
             f"Command: `{facts['command']}`  ", f"Product on core {bench.product_core}, driver and engines on core "
             f"{bench.driver_core}; {len(rounds)} rounds, {bench.seconds:g} s each  "]
    lines += [f"{name}: {text}  " for name, text in facts["versions"].items()]
    lines += [f"**{text}**  " for text in facts["missing"].values()]
    if not complete:
        lines.append("**Interrupted: the tables hold what was measured until then.**  ")
    lines += ["", "## Goals", ""] + goals_table(rounds, baseline, table)
    lines += ["", "## Every product", ""] + products_table(rounds, table)
    notes = disturbances(bench) + lost_ratios(rounds, table) + [error for current in rounds for error in current.errors]
    if notes:
        lines += ["", "## Notes", ""] + [f"* {note}" for note in notes]
    return "\n".join(lines)


def save(folder, bench, rounds, facts, complete, table=SIDECAR_TABLE):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, time.strftime(f"{table.file_prefix}-%Y%m%d-%H%M%S.json"))
    rows = {}
    for row in table.rows:
        per_product = {product: ratios_of(row, rounds, product) for product in table.products}
        rows[row.id] = {product: {"median": statistics.median(ratios), "rounds": ratios}
                        for product, ratios in per_product.items() if ratios}
    content = {**facts, "complete": complete, "rows": {row: found for row, found in rows.items() if found},
               "values": [current.values for current in rounds],
               "errors": [error for current in rounds for error in current.errors], "raw": bench.raw}
    with open(path, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    return path


def read_baseline(path, table=SIDECAR_TABLE):
    """Medians of the table's subject in an earlier result file."""
    if not path:
        return {}
    with open(path) as file:
        rows = json.load(file)["rows"]
    subjects = {row.id: row.subject or table.subject for row in table.rows}
    return {row: found[subjects[row]]["median"] for row, found in rows.items()
            if row in subjects and subjects[row] in found}
