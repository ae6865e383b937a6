"""The flags of `tidemill cdcv2`. The work is in `cdcv2_inspect`, imported when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

cdcv2 = typer.Typer(help="Streams of changes in the form CDCv2.", no_args_is_help=True, rich_markup_mode=None)


@cdcv2.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Streams of changes in the form CDCv2."""


@cdcv2.command("inspect")
def inspect(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...|TOPIC",
            help="Files of JSON lines or Avro, folders of them, - for the standard input; or, with --brokers,"
            " a topic.",
        ),
    ],
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="HOST:PORT,...", help="Read a topic of this Kafka.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="The schema registry of a topic in Avro."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE", help="The Avro schema of a topic without a registry."),
    ] = None,
    resume_from: Annotated[
        list[str] | None,
        typer.Option(
            "--resume-from",
            metavar="TIME",
            help="Where a reader begins who has a snapshot: 7, or 3,4 for pairs; repeat it for a frontier of"
            " several.",
        ),
    ] = None,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write the timeline to an SVG file too.")
    ] = None,
    timeline: Annotated[bool, typer.Option("--timeline/--no-timeline", help="Draw the timeline.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Show what a CDCv2 stream says: updates, statements, how far it is complete, what waits for what since
    when, what contradicts what; and draw the timeline.

    Only reads, from the beginning to the present end. Ends with status 0 if the stream is sound; 1 if a
    statement or updates are missing, if statements contradict each other or if a message cannot be read; 2 if
    the command is wrong or the stream cannot be had.
    """
    from tidemill.cli import cdcv2_inspect as command

    wish = command.InspectOptions(
        tuple(names), brokers, registry, schema, tuple(resume_from or ()), svg, timeline, as_json
    )
    raise typer.Exit(command.run(wish))
