"""What `fsm-spec model` does."""

from __future__ import annotations

import json

from fsm_spec.errors import UserError
from fsm_spec.executor.loading import progress_bar


def get_model(name: str, *, as_json: bool) -> None:
    """Fetch a known model; one that is whole in the cache is only verified."""
    from fsm_spec.executor.models.fetch import fetch_smollm2
    from fsm_spec.executor.models.store import SMOLLM2

    # As published the name ends in -Instruct.
    if name.casefold().removesuffix("-instruct") not in (SMOLLM2, SMOLLM2.partition("-")[0]):
        raise UserError(f'no model "{name}" can be fetched; known: {SMOLLM2}')
    with progress_bar() as progress:
        folder = fetch_smollm2(progress)
    if as_json:
        print(json.dumps({"model": SMOLLM2, "folder": str(folder)}))
    else:
        print(f"{SMOLLM2} is in {folder}")


def show_models(*, as_json: bool) -> None:
    """List known models and whether they are in the cache."""
    from fsm_spec.executor.models.fetch import PACKAGE_BYTES
    from fsm_spec.executor.models.store import SMOLLM2, is_whole, model_folder

    folder = model_folder(SMOLLM2)
    here = is_whole(folder)
    if as_json:
        print(json.dumps([{"model": SMOLLM2, "fetched": here, "folder": str(folder) if here else None}]))
        return
    state = (
        f"in {folder}"
        if here
        else f"not here; fsm-spec model get {SMOLLM2} downloads {PACKAGE_BYTES / 1e6:.0f} MB"
    )
    print(f"{SMOLLM2}  {state}")
