#!/usr/bin/env python3
"""Prints a table of what fio's JSON files say of writes: table.py FILE..."""
import json
import sys

HEADER = ["job", "senders", "GB/s", "IOPS", "p50 us", "p99 us", "p99.9 us", "errors"]


def row(job, common):
    write = job["write"]
    # fio leaves out the percentiles where there was no write, and those that its option percentile_list does not name.
    percentile = write["clat_ns"].get("percentile", {})
    us = [f"{percentile[key] / 1000:.0f}" if key in percentile else "-" for key in ("50.000000", "99.000000", "99.900000")]
    # fio lists the options that were given, and counts errors only where a job goes on after them.
    options = {**common, **job.get("job options", {})}
    senders = options.get("numjobs", "1")
    if job["error"]:
        errors = f"{job['error']} (errno)"
    else:
        errors = "0" if options.get("continue_on_error", "none") == "none" else str(job["total_err"])
    return [job["jobname"], senders, f"{write['bw_bytes'] / 1e9:.2f}", f"{write['iops']:.0f}", *us, errors]


def main(files):
    rows = [HEADER]
    for name in files:
        with open(name, encoding="utf-8") as file:
            text = file.read()
        # fio writes its notes before the JSON.
        found = json.loads(text[text.index("{"):])
        rows += [row(job, found.get("global options", {})) for job in found["jobs"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    for row_ in rows:
        print("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                        for column, (cell, width) in enumerate(zip(row_, widths))))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1:])
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, ArithmeticError, AttributeError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"table.py: not what fio writes with --output-format=json: {error!r}")
