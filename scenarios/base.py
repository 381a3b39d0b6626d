"""What all scenario models share: strictness, and the types of plain numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scenarios.errors import located, unknown

Count = Annotated[int, Field(strict=True, ge=1)]
CountFromZero = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen; an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def keys(cls) -> list[str]:
        """The keys that a scenario file may use here."""
        return list(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            wrong = [key for key in data if key not in cls.model_fields]
            if wrong:
                raise located([((key,), unknown("key", key, cls.keys())) for key in wrong])
        return data
