"""What every part of the configuration file is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the file that knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
