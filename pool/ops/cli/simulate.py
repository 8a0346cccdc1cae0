"""`warmpool simulate`: what a warm target, a TTL or a cap would do with a given demand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pool.ops.cli.app import UsageError, new_app, settings_of
from pool.ops.cli.printing import JsonOption, as_json, table

if TYPE_CHECKING:
    from pool.ops.simulating import SimulationOutcome, Trace

app = new_app("Try warm targets, TTLs and caps on a trace of demand, in virtual time.")


@app.command()
def simulate(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(help="CSV file with the header time,org,profile,hold_s; - reads standard input."),
    ] = None,
    poisson: Annotated[
        float,
        typer.Option(
            metavar="RATE", min=0, help="Generate steady demand with this many requests per second."
        ),
    ] = 0.0,
    burst: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Generate bursts: N requests within one second, every --every."
        ),
    ] = 0,
    every: Annotated[
        float, typer.Option(metavar="S", min=1, help="Time between bursts, in seconds.")
    ] = 600.0,
    diurnal: Annotated[
        float,
        typer.Option(
            metavar="RATE",
            min=0,
            help="Generate load that rises and falls as over a day, with this many requests per second at its peak.",
        ),
    ] = 0.0,
    hours: Annotated[float, typer.Option(min=0.01, help="Duration of generated demand, in hours.")] = 24.0,
    orgs: Annotated[
        int, typer.Option(min=1, help="Number of orgs in generated demand; the first sends most requests.")
    ] = 10,
    hold: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Average time a worker is held in generated demand, in seconds."
        ),
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of generated demand.")] = 1,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="CHANGES",
            help="Settings to compare, for example warm_target=5,hot_idle_ttl_s=120; repeatable.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            help="Longest time callers wait (wait_s), in seconds; 0 means they do not wait.",
        ),
    ] = 30.0,
    spawn: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Time from creating a slot to the worker being ready, in seconds."
        ),
    ] = 10.0,
    activation: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Assumed duration of an activation of a warm worker, in seconds."
        ),
    ] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a plot (PNG, SVG or PDF) to this file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try warm targets, TTLs and caps on a demand trace, in virtual time. Changes nothing in the pool.

    Demand is read from a CSV file of requests, or generated. The first column of the result has the
    configured settings; each --try adds a column with some settings changed. The simulation uses
    the pool's own planning code, and the passes run at their periods. A million requests take less
    than a minute.

    \b
    What should my warm target be?
      warmpool simulate --diurnal 2 --hold 90 --try warm_target=5 --try warm_target=10 --try warm_target=20
    What should my TTL be? A longer TTL saves starts and activations, and costs idle time.
      warmpool simulate --poisson 1 --activation 3 --try hot_idle_ttl_s=30 --try hot_idle_ttl_s=300
    Would a cap of 40 workers have been enough last Tuesday?
      warmpool simulate tuesday.csv --try max_workers=40
    Change one profile only:
      warmpool simulate tuesday.csv --try gpu.warm_target=2

    \b
    Meaning of the rows:
      hit rate    share of requests that got a worker without waiting for one: warm, or parked for their org
      wait        wait of requests that got a worker; a hit waits for its activation only
      idle        vCPU-hours of workers without a claim, as warmpool_idle_vcpu_seconds_total counts them

    To measure --spawn in your pool: histogram_quantile(0.9, rate(warmpool_spawn_seconds_bucket[1d])).
    """
    from pool.ops.simulating import Assumptions, drawing, variants
    from pool.ops.simulating import simulate as replay

    settings = settings_of(context)
    demand = _demand(
        trace, poisson=poisson, burst=burst, every=every, diurnal=diurnal, hours=hours, orgs=orgs,
        hold=hold, seed=seed,
    )  # fmt: skip
    given = Assumptions(spawn_s=spawn, activation_s=activation, wait_s=wait)
    columns = [
        ("as configured", settings),
        *((text, variants.changed(settings, text)) for text in tries or ()),
    ]
    outcomes = [replay(demand, tried, given, label=label) for label, tried in columns]
    if plot is not None:
        drawing.picture(outcomes, plot)
    if json:
        as_json([o.as_dict() for o in outcomes])
    else:
        _show(outcomes, demand)


def _show(outcomes: list[SimulationOutcome], demand: Trace) -> None:
    from pool.ops.simulating import drawing

    print(f"{len(demand):,} requests over {demand.span_s / 3600:.1f} h")
    print()
    print(table(["", *(o.label for o in outcomes)], drawing.rows(outcomes)))
    width = max(20, min(100, shutil.get_terminal_size().columns - 30))
    for outcome in outcomes:
        print()
        print(outcome.label)
        print("\n".join(drawing.lines(outcome, width)))
    if len(outcomes) > 1:
        print()
        print(drawing.advice(outcomes))


def _demand(
    trace: Path | None,
    *,
    poisson: float,
    burst: int,
    every: float,
    diurnal: float,
    hours: float,
    orgs: int,
    hold: float,
    seed: int,
) -> Trace:
    from pool.ops.simulating import traces

    if sum(map(bool, (trace, poisson, burst, diurnal))) != 1:
        raise UsageError(
            "give exactly one demand: a CSV file, --poisson, --burst or --diurnal (see `warmpool "
            "simulate --help`)"
        )
    crowd, span_s = traces.Crowd(orgs=orgs, hold_s=hold, seed=seed), hours * 3600
    if poisson:
        return traces.poisson(crowd, per_s=poisson, span_s=span_s)
    if burst:
        return traces.bursts(crowd, size=burst, every_s=every, span_s=span_s)
    if diurnal:
        return traces.diurnal(crowd, peak_per_s=diurnal, span_s=span_s)
    if str(trace) == "-":
        return traces.read(typer.get_text_stream("stdin"))
    with Path(trace or "").open(newline="") as lines:
        return traces.read(lines)
