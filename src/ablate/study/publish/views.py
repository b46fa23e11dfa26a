"""Make the views and the report at W&B from wandb.json, with wandb-workspaces."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import PanelGrid
    from wandb_workspaces.workspaces import Workspace

SECTION = "Ablation"
STEP = "trainer/global_step"
MOST_LINES = 100  # in one chart


def save_view(spec: dict[str, Any], key: str, entity: str, *, known: str | None) -> str:
    """Make a view, or update the `known` one; return its address.

    The sections and settings of a known view that are not ours are kept.
    """
    import wandb_workspaces.workspaces as ws

    view, project = spec["views"][key], spec["project"]
    shown = _known(known) or ws.Workspace(entity=entity, project=project, auto_generate_panels=True)
    ours = ws.Section(SECTION, panels=_panels(spec, view), is_open=True)
    shown.name = view["name"]
    shown.sections = [ours, *(section for section in shown.sections if section.name != SECTION)]
    shown.settings.max_runs = min(view["lines"], MOST_LINES)
    grouped = bool(view["group_by"])
    shown.runset_settings = ws.RunsetSettings(
        filters=_filters(spec),
        groupby=[ws.Config(view["group_by"])] if grouped else [],
        order=[ws.Ordering(ws.Summary(view["order_by"]), ascending=view["ascending"])],
        group_colors=view["colors"] if grouped else {},
        run_settings={} if grouped else {r: ws.RunSettings(c) for r, c in view["colors"].items()},
        pinned_columns=view["columns"],
        baseline_run=view["baseline_run"],
    )
    return str(shown.save().url)


def _known(url: str | None) -> "Workspace | None":
    import wandb_workspaces.workspaces as ws

    try:
        return ws.Workspace.from_url(url) if url else None
    except ValueError as error:
        if "not found" in str(error):  # it was removed
            return None
        raise


def save_report(
    spec: dict[str, Any], table: str, entity: str, *, known: str | None
) -> tuple[str, str]:
    """Make W&B's report, or rewrite the `known` one; return its address and its id."""
    import wandb_workspaces.reports.v2 as wr

    specified = spec["report"]
    report = wr.Report(
        spec["project"],
        entity=entity,
        title=specified["title"],
        blocks=[
            wr.MarkdownBlock(specified["text"]),
            _grid(spec, entity),
            _figures(spec, table, entity),
        ],
        width="fluid",
    )
    report.id = known or ""
    try:
        report.save()
    except Exception:
        if not known:
            raise
        report.id = ""  # it was removed
        report.save()
    return str(report.url), report.id


def _grid(spec: dict[str, Any], entity: str) -> "PanelGrid":
    """Make the panels of the arms, as in their view."""
    import wandb_workspaces.reports.v2 as wr

    view = spec["views"]["arms"]
    arm = wr.Config(view["group_by"])
    colors: dict[Any, Any] = {
        wr.RunsetGroup("arms", (wr.RunsetGroupKey(arm, name),)): color
        for name, color in view["colors"].items()
    }
    runs = wr.Runset(
        entity,
        spec["project"],
        "arms",
        filters=_filters(spec),
        groupby=[f"config.{view['group_by']}"],
        order=[wr.OrderBy(wr.SummaryMetric(view["order_by"]), ascending=view["ascending"])],
    )
    return wr.PanelGrid(runsets=[runs], panels=_panels(spec, view), custom_run_colors=colors)


def _figures(spec: dict[str, Any], table: str, entity: str) -> "PanelGrid":
    """Make the panels of the report's own run: its table and figures."""
    import wandb_workspaces.reports.v2 as wr

    keys = [
        f"report/{name.rpartition('/')[2].removesuffix('.png')}" for name in spec["run"]["figures"]
    ]
    runs = wr.Runset(
        entity, spec["project"], "report", filters=f'Metric("ID") == {_literal(spec["run"]["id"])}'
    )
    wide = wr.Layout(w=24, h=8)
    return wr.PanelGrid(
        runsets=[runs],
        panels=[
            wr.WeavePanelSummaryTable(table_name=table, layout=wide),
            wr.MediaBrowser(media_keys=keys, num_columns=2, layout=wr.Layout(y=8, w=24, h=14)),
        ],
    )


def _panels(spec: dict[str, Any], view: dict[str, Any]) -> list[Any]:
    """Make panels of mean and standard error over the seeds of an arm, or of every single run."""
    import wandb_workspaces.reports.v2 as wr

    together: dict[str, Any] = {"max_runs_to_show": min(view["lines"], MOST_LINES)}
    if view["group_by"]:
        arm = wr.Config(view["group_by"])
        together |= {"groupby": arm, "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    panels: list[Any] = []
    for panel in spec["panels"]:
        if panel["kind"] == "line":
            panels.append(wr.LinePlot(panel["title"], x=STEP, y=[panel["metric"]], **together))
        else:
            panels.append(wr.BarPlot(panel["title"], metrics=[panel["metric"]], **together))
    return panels


def _filters(spec: dict[str, Any]) -> str:
    """Select the finished runs that count: neither those of the tuning nor the report's own."""
    conditions = {
        'Config("ablate.value.study")': spec["study"],  # W&B's path of config["ablate"]["study"]
        'Metric("JobType")': spec["job_type"],
        'Metric("State")': "finished",
    }
    return " and ".join(f"{key} == {_literal(value)}" for key, value in conditions.items())


def _literal(text: str) -> str:
    """Quote and escape a text: wandb-workspaces takes "=" for an operator even inside quotes."""
    return (
        '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'
    )
