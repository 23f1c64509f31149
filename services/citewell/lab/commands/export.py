"""`citewell export`: writes trained models as files that are served without torch, and feedback as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import print

from citewell.lab.commands.feedback import feedback
from citewell.reranker.model_files import GRAPHS, RerankerUnusable, read_model_folder
from citewell.reranker.settings import PACKAGED_MODEL, model_folder

app = typer.Typer(
    help="Write trained models in the form they are served, and feedback as a data set.", no_args_is_help=True
)

app.command("feedback")(feedback)

# A larger difference means that the exported model is not the one that was measured.
_PARITY = 1e-4


@app.command()
def triton(
    repository: Annotated[Path, typer.Option(help="Triton model repository, such as deploy/triton/models.")],
    model: Annotated[Path, typer.Option(help="`small`, or a folder that `export davinci` wrote.")] = PACKAGED_MODEL,
    name: Annotated[str, typer.Option(help="The model's name in the repository.")] = "davinci",
    version: Annotated[int, typer.Option(min=1, help="Its version there.")] = 1,
) -> None:
    """Write the model that ships (or another folder) as a version in a Triton repository; needs no torch."""
    import onnx

    from citewell.inference.davinci_graph import joined

    try:
        folder = read_model_folder(model_folder(model))
    except RerankerUnusable as error:
        raise typer.BadParameter(str(error), param_hint="--model") from None
    written = repository / name / str(version) / "model.onnx"
    written.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(joined(*(onnx.load(folder.file(graph)) for graph in GRAPHS)), written)
    print(f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB, {folder.description.precision} weights)")


@app.command()
def davinci(
    run: Annotated[Path, typer.Argument(help="The run folder that training wrote.")],
    out: Annotated[Path, typer.Option(help="Folder to write, for CITEWELL_RERANKER__MODEL.")],
    storage: Annotated[str, typer.Option(help="fp32, int8 or fp16 (fp16 is for GPUs).")] = "int8",
    name: Annotated[str, typer.Option(help="The model's name, for display.")] = "davinci-minilm",
    cut_off: Annotated[str, typer.Option(help="Last day its training data may know of, YYYY-MM-DD.")] = "2025-12-31",
    budget: Annotated[
        str, typer.Option(help="Token budgets other than in training, such as context=24,candidate=20.")
    ] = "",
    mean_with: Annotated[
        Path | None, typer.Option(help="Run or exported model that RUN started from: export the mean of both.")
    ] = None,
    share_with: Annotated[
        Path | None, typer.Option(help="Model folder beside OUT: use its sides.onnx, trained with freeze_sides.")
    ] = None,
    triton: Annotated[Path | None, typer.Option(help="Triton model repository to write a version into, too.")] = None,
    triton_model: Annotated[str, typer.Option(help="The model's name in that repository.")] = "davinci",
    version: Annotated[int, typer.Option(help="Its version in that repository.")] = 1,
    triton_storage: Annotated[str, typer.Option(help="fp16 for GPUs, fp32 or int8.")] = "fp16",
) -> None:
    """Write a trained DAVINCI as ONNX, after comparing it with torch."""
    try:
        from citewell.lab.commands.options import failing_clearly
        from citewell.lab.commands.rerank import asked_budget
        from citewell.lab.davinci.averaging import write_mean
        from citewell.lab.davinci.export import Storage, build_graphs, export_folder, export_triton_version, parity
        from citewell.lab.davinci.runs import RunFolder
    except ImportError as error:
        raise typer.BadParameter(f"{error.name} is missing: install citewell[lab]") from None

    folder = RunFolder(run)
    if not folder.weights.is_file():
        raise typer.BadParameter(f"{run} is no run folder: it has no {folder.weights.name}", param_hint="RUN")
    if mean_with:
        with failing_clearly():
            folder = write_mean(folder, mean_with, run / "mean")
    served = asked_budget(folder.settings.budget, budget)
    year, month, day = (int(part) for part in cut_off.split("-"))
    difference = parity(folder, build_graphs(folder, Storage.FP32))
    print(f"torch and ONNX in fp32 differ by at most {difference:.1e}")
    if difference > _PARITY:
        raise typer.BadParameter(f"that is more than {_PARITY:.0e}: nothing was written")
    with failing_clearly():
        export_folder(folder, out, Storage(storage), name, (year, month, day), served, share_with)
    print(f"wrote {out} ({sum(file.stat().st_size for file in out.iterdir()) / 1e6:.1f} MB)")
    if triton:
        print(f"wrote {export_triton_version(folder, triton, triton_model, version, Storage(triton_storage))}")
