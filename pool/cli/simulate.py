"""`warmpool simulate`: what a warm target, a TTL or a cap would do to a day of demand, before anybody pays for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pool.cli.app import UsageError, new_app, settings_of
from pool.cli.printing import JsonOption, as_json, table

if TYPE_CHECKING:
    from pool.simulating import Outcome, Trace

app = new_app("Try warm targets, TTLs and caps on a trace of demand, in virtual time.")


@app.command()
def simulate(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Argument(help="CSV with the header time,org,profile,hold_s; - reads the input.")
    ] = None,
    poisson: Annotated[
        float, typer.Option(metavar="RATE", min=0, help="Steady demand: requests a second.")
    ] = 0.0,
    burst: Annotated[
        int, typer.Option(metavar="N", min=0, help="N requests within a second, every --every.")
    ] = 0,
    every: Annotated[float, typer.Option(metavar="S", min=1, help="Seconds between bursts.")] = 600.0,
    diurnal: Annotated[
        float, typer.Option(metavar="RATE", min=0, help="A day's wave with this peak a second.")
    ] = 0.0,
    hours: Annotated[float, typer.Option(min=0.01, help="How long made-up demand lasts.")] = 24.0,
    orgs: Annotated[int, typer.Option(min=1, help="Orgs in made-up demand; the first asks most.")] = 10,
    hold: Annotated[
        float, typer.Option(metavar="S", min=0, help="How long they hold a worker, on average.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Another number, another day.")] = 1,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="CHANGES", help="Settings to compare, e.g. warm_target=5,hot_idle_ttl_s=120."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="S", min=0, help="How long callers wait (wait_s); 0: not at all.")
    ] = 30.0,
    spawn: Annotated[
        float, typer.Option(metavar="S", min=0, help="From a slot to its worker being ready.")
    ] = 10.0,
    activation: Annotated[
        float, typer.Option(metavar="S", min=0, help="Binding a warm worker to its org.")
    ] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a picture (PNG, SVG, PDF).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try warm targets, TTLs and caps on a trace of demand, in virtual time. Touches nothing.

    Demand comes from a CSV of requests, or is made up. The settings are those of the configuration; each --try is one
    more column with some of them changed. What to start and what to let go is decided by the pool's own planning,
    with the passes at their periods. A million requests take well under a minute.

    \b
    What should my warm target be?
      warmpool simulate --diurnal 2 --hold 90 --try warm_target=5 --try warm_target=10 --try warm_target=20
    And the TTL? A longer one saves starts (and activations) and costs idle time.
      warmpool simulate --poisson 1 --activation 3 --try hot_idle_ttl_s=30 --try hot_idle_ttl_s=300
    Would a cap of 40 have held last Tuesday?
      warmpool simulate tuesday.csv --try max_workers=40
    One profile alone:
      warmpool simulate tuesday.csv --try gpu.warm_target=2

    \b
    How to read it
      hit rate    requests that found a worker at hand: warm, or parked for their org
      wait        of those that got one; a hit waits for its activation only
      idle        vCPU-hours of workers that served nobody, as warmpool_idle_vcpu_seconds_total counts them

    Measure --spawn in your pool: histogram_quantile(0.9, rate(warmpool_spawn_seconds_bucket[1d])).
    """
    from pool.simulating import Assumptions, drawing, trying
    from pool.simulating import simulate as replay

    settings = settings_of(context)
    demand = _demand(trace, poisson=poisson, burst=burst, every=every, diurnal=diurnal, hours=hours, orgs=orgs, hold=hold, seed=seed)  # fmt: skip
    given = Assumptions(spawn_s=spawn, activation_s=activation, wait_s=wait)
    columns = [("as configured", settings), *((text, trying.changed(settings, text)) for text in tries or ())]
    outcomes = [replay(demand, tried, given, label=label) for label, tried in columns]
    if plot is not None:
        drawing.picture(outcomes, plot)
    if json:
        as_json([o.as_dict() for o in outcomes])
    else:
        _show(outcomes, demand)


def _show(outcomes: list[Outcome], demand: Trace) -> None:
    from pool.simulating import drawing

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
    from pool.simulating import traces

    if sum(map(bool, (trace, poisson, burst, diurnal))) != 1:
        raise UsageError(
            "give one demand: a CSV, --poisson, --burst or --diurnal (see `warmpool simulate --help`)"
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
