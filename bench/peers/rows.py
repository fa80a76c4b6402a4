#!/usr/bin/env python3
"""Prints the rows of one comparison: rows.py [--json] [--brief] NAME DIRECTORY, or the table of many: rows.py --table FILE...

DIRECTORY has `rows`, a line each as bench/peers/turns.sh writes them, and NAME.samples, a number a line. With --json one object a row,
of the same keys as jet-bench's; FILEs hold such objects. With --brief no bound is judged: `holds` is null, as jet-bench has it."""
import json
import statistics
import sys


def read_samples(directory, name):
    with open(f"{directory}/{name}.samples", encoding="utf-8") as file:
        return [float(line) for line in file]


def row(name, directory, line, brief):
    kind, metric, *rest = line.rstrip("\n").split("\t")
    bound = None
    if kind == "figure":
        unit, samples, factor = rest
        values = read_samples(directory, samples)
        if factor.startswith("/"):
            values = [float(factor[1:]) / value for value in values]
        else:
            values = [float(factor) * value for value in values]
    else:
        samples, base, least = rest
        unit = "ratio"
        # In turn: what drifts over a run is in both samples of a turn.
        pairs = zip(read_samples(directory, samples), read_samples(directory, base), strict=True)
        values = [value / beside for value, beside in pairs]
        bound = float(least) if least else None
    value = statistics.median(values)
    holds = bound is None or value >= bound
    return {"bench": name, "metric": metric, "kind": "timed", "value": value, "unit": unit, "bound": None if bound is None else f">= {bound:g}",
            "holds": None if brief and bound is not None else holds, "samples": values}


def figure(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def table(rows):
    widths = [max((len(each[key]) for each in rows), default=0) for key in ("bench", "metric")]
    for each in rows:
        verdict = ""
        if each["bound"]:
            words = {True: "holds", False: "DOES NOT HOLD", None: "not judged, brief"}
            verdict = f"   {each['bound']}: {words[each['holds']]}"
        spread = f"{figure(min(each['samples']))} .. {figure(max(each['samples']))}"
        print(f"{each['bench']:<{widths[0]}}  {each['metric']:<{widths[1]}}  {figure(each['value']):>9} {each['unit']:<5} {spread:<18}"
              f"{verdict}".rstrip())


def main(arguments):
    if arguments[:1] == ["--table"]:
        found = []
        for name in arguments[1:]:
            with open(name, encoding="utf-8") as file:
                # What jet-bench prints begins with the run that the rows are of.
                found += [line for line in map(json.loads, file) if "run" not in line]
        return table(found)
    as_json, brief = ("--json" in arguments[:2], "--brief" in arguments[:2])
    name, directory = arguments[as_json + brief:]
    with open(f"{directory}/rows", encoding="utf-8") as file:
        found = [row(name, directory, line, brief) for line in file]
    if as_json:
        for each in found:
            print(json.dumps(each))
        return None
    return table(found)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1:])
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, ArithmeticError, AttributeError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"rows.py: the rows or samples are not what they are to be: {error!r}")
